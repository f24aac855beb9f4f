"""A pad row's state index is that of a request which is parked: its state is overwritten and nothing else is wrong."""

from typing import Any

from atom_impl.model_engine.staging import StagingBuffers
from harness.mutants import Mutant, wrap


def pad_slots(write: Any, self: Any, batch: Any, mode: Any, slot: int) -> None:
    write(self, batch, mode)
    self.slot_mapping.np[batch.rows : mode.running_tokens] = slot
    self.live_rows.np[0] = mode.running_tokens


def parked(write: Any, self: Any, batch: Any, mode: Any) -> None:
    owned = {block for table in batch.block_tables for block in table}
    pad_slots(write, self, batch, mode, next(b for b in range(24) if b not in owned) * self.block_size)


def scratch(write: Any, self: Any, batch: Any, mode: Any) -> None:
    pad_slots(write, self, batch, mode, 24 * self.block_size)


MUTANT = Mutant(
    kind="PADDING",
    variant="pad row owns a parked request's slot",
    changes="pad rows count as live and write a block of a request that is not in the step",
    control_is="pad rows count as live and write the declared scratch block.",
    caught_by=("G2.kv",),
    says="Arm, bucket, KV tensor, block and offset that was written: a pad row's slot.",
    plant=lambda: wrap(StagingBuffers, "_write_rows", parked),
    control=lambda: wrap(StagingBuffers, "_write_rows", scratch),
    gpu=True,
)
