"""Every step that the harness drove in a cell, with what the engine claimed of it.

A share of replayed steps computed from the engine's own totals once hid that the engine had not counted the steps it
missed; the denominator here is what was driven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.engines.base import Arm, Phase, StepBatch


@dataclass(frozen=True)
class DrivenStep:
    """`rows` are live. `claim` is the engine's ledger record as a plain dict."""

    arm: Arm
    phase: Phase
    batch: int
    rows: int
    claim: Mapping[str, Any]


@dataclass
class StepTrace:
    """In the order driven. Arm REF is left out: it is the harness's own ruler, not a step of the engine's."""

    steps: list[DrivenStep] = field(default_factory=list)

    def add(self, arm: Arm, batch: StepBatch, claim: Mapping[str, Any]) -> None:
        if arm is not Arm.REF:
            self.steps.append(DrivenStep(arm, batch.phase, len(batch.token_ids), batch.rows, dict(claim)))

    def of(self, arm: Arm, phase: Phase | None = None) -> Iterator[DrivenStep]:
        return (step for step in self.steps if step.arm is arm and phase in (None, step.phase))
