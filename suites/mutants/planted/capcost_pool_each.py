"""A pool for every bucket: nothing is shared, and a probe that looks at one pool sees nothing."""

from typing import Any

from atom_impl.model_engine import capture
from atom_impl.utils.region_graph import reset_graph_pool
from harness.mutants import Mutant, wrap


def in_its_own_pool(capture_bucket: Any, runner: Any, bucket: Any) -> None:
    capture_bucket(runner, bucket)
    reset_graph_pool()


def in_the_shared_pool(capture_bucket: Any, runner: Any, bucket: Any) -> None:
    capture_bucket(runner, bucket)


MUTANT = Mutant(
    kind="CAPCOST",
    variant="pool for every bucket",
    changes="the shared pool is forgotten after each bucket",
    control_is="the bucket through one more call.",
    caught_by=("closed.pools",),
    says="How many pools there are, which bucket lies in which, their sizes, and the one size that is claimed.",
    plant=lambda: wrap(capture, "capture_bucket", in_its_own_pool),
    control=lambda: wrap(capture, "capture_bucket", in_the_shared_pool),
    gpu=True,
)
