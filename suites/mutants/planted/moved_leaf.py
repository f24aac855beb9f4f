"""A metadata leaf is made anew each step, so it lies at another address than the recording reads."""

from typing import Any

from atom_impl.model_engine.staging import StagingBuffers
from harness.mutants import Mutant, wrap


def fresh(stage: Any, self: Any, batch: Any, mode: Any, record: Any) -> Any:
    ids, positions, metadata = stage(self, batch, mode, record)
    if mode.use_cudagraph:
        metadata.block_tables = metadata.block_tables + 0
    return ids, positions, metadata


def another_view(stage: Any, self: Any, batch: Any, mode: Any, record: Any) -> Any:
    ids, positions, metadata = stage(self, batch, mode, record)
    metadata.block_tables = metadata.block_tables[:]
    return ids, positions, metadata


MUTANT = Mutant(
    kind="MOVED",
    variant="block tables made anew",
    changes="a replayed step gets its block tables in a fresh tensor",
    control_is="a new view of the same memory.",
    caught_by=("crashed in replay",),
    says="The recording and the leaf that moved, and what to do instead.",
    plant=lambda: wrap(StagingBuffers, "stage", fresh),
    control=lambda: wrap(StagingBuffers, "stage", another_view),
    gpu=True,
)
