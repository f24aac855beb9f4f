"""The copy covers [:live] and not [live:bucket]: pad rows are the last step's requests."""

from typing import Any

from atom_impl.model_engine import staging
from harness.mutants import Mutant, swap, wrap


def trust_the_tail(write: Any, self: Any, batch: Any, mode: Any) -> None:
    write(self, batch, mode)
    self.live_rows.np[0] = mode.running_tokens


def keep_the_tail(fill: Any, buffer: Any, where: slice, value: int | None) -> None:
    """Leaves what the previous step wrote."""


MUTANT = Mutant(
    kind="STALE",
    variant="tail of the last step",
    changes="pad rows are not rewritten, and attention takes them for live",
    control_is="pad rows are not rewritten, and live_rows says that they are dead.",
    caught_by=("G2.kv", "G2"),
    says="Arm, bucket and cache slot, and whether the step before owned it: a STALE tail, or PADDING.",
    plant=lambda: (
        swap(staging, "_fill", lambda *_: None),
        wrap(staging.StagingBuffers, "_write_rows", trust_the_tail),
    ),
    control=lambda: wrap(staging, "_fill", keep_the_tail),
    gpu=True,
)
