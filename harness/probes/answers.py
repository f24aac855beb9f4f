"""What arms E and REF answered before, for the cells of one process that ask them the same thing again.

Neither arm depends on a cell's graph mode: every mode asks for the same eager steps over the same cache, and on a
laptop the eager and the float64 model took half of a sign-off. Level 0 has no compiler, so its arm C is arm E.
Arm R, and C above level 0, are what a cell is about and always run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from harness.cells import Cell
from harness.engines.base import Arm, StepBatch

if TYPE_CHECKING:
    from harness.probes.numerics.arms import ArmRun

#: Together they may not take more than this; a reference of a wide vocabulary is large, and computing it again is not.
LIMIT_BYTES = 1 << 30
_AXES = ("engine", "model", "level", "op_backend", "ranks")


@dataclass(frozen=True)
class Asked:
    """Everything that an eager answer depends on. `state` is a digest of the cache's bits before the step."""

    model: tuple[Hashable, ...]
    threads: int
    arm: Arm
    batch: StepBatch
    rows: int
    state: str


class Answers:
    """One for each worker process. G0 runs arm E afresh in every cell and holds it against what is kept here."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.found = 0
        self._runs: dict[Asked, ArmRun] = {}

    def get(self, asked: Asked) -> ArmRun | None:
        run = self._runs.get(asked)
        self.found += run is not None
        return run

    def keep(self, asked: Asked, run: ArmRun) -> None:
        size = sum(tensor.numel() * tensor.element_size() for _, tensor in run.tensors())
        if self.used_bytes + size <= self.limit_bytes and asked not in self._runs:
            self._runs[asked] = run
            self.used_bytes += size


def shared_arm(cell: Cell, arm: Arm) -> Arm | None:
    """The arm whose kept answer `arm` may take in this cell; None for one that must run."""
    if arm is Arm.C and cell["level"] == 0:
        return Arm.E
    return arm if arm in (Arm.E, Arm.REF) else None


def asked_by(cell: Cell, dtype: str, arm: Arm, batch: StepBatch, rows: int | None, state: str) -> Asked:
    """`arm` is a shared one; `rows` the padded rows, None for the batch's own."""
    model = (*(str(cell[axis]) for axis in _AXES), dtype)
    return Asked(model, torch.get_num_threads(), arm, batch, rows or batch.rows, state)
