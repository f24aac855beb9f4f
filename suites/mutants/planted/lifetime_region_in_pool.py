"""A region allocates in the recordings' pool: blocks that the next segment still needs look free."""

from typing import Any

import torch

from atom_impl.device import get_device
from atom_impl.graphs.recording import Recording
from atom_impl.utils.region_graph import graph_pool
from harness.mutants import Mutant, wrap


def in_the_pool(run: Any, self: Any, region: Any, record: Any) -> None:
    with get_device().allocating(graph_pool()):
        run(self, region, record)


def beside_the_pool(run: Any, self: Any, region: Any, record: Any) -> None:
    scratch = torch.empty(1 << 16, device=get_device().torch_device)
    run(self, region, record)
    del scratch


MUTANT = Mutant(
    kind="LIFETIME",
    variant="region allocates in the pool",
    changes="the temporaries of an eager region come from the pool in the middle of a replay",
    control_is="temporaries from ordinary memory.",
    caught_by=("audit.pool", "G1", "G1.first", "crashed in replay"),
    says="Bucket, the blocks and bytes that were taken from the pool outside a capture, and the first line: LIFETIME.",
    plant=lambda: wrap(Recording, "_run_region", in_the_pool),
    control=lambda: wrap(Recording, "_run_region", beside_the_pool),
    mode="TR_HYBRID",
    gpu=True,
)
