"""A bucket that nothing asks for: memory and start-up time for a graph that no step replays."""

from typing import Any

from atom_impl.model_engine import capture
from harness.mutants import Mutant, wrap


def one_more(buckets_of: Any, runner: Any) -> Any:
    return [capture.Bucket(runner.config.max_num_seqs, "decode"), *buckets_of(runner)]


def in_order(buckets_of: Any, runner: Any) -> Any:
    return sorted(sorted(buckets_of(runner)), reverse=True)


MUTANT = Mutant(
    kind="CAPCOST",
    variant="bucket nobody asked for",
    changes="the capture adds a bucket above the ladder",
    control_is="the ladder's buckets, sorted once more.",
    caught_by=("dispatch.ladder",),
    says="The buckets that were recorded, those that were asked for, and the extra one.",
    plant=lambda: wrap(capture, "buckets_of", one_more),
    control=lambda: wrap(capture, "buckets_of", in_order),
)
