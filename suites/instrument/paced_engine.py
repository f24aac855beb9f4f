"""An engine whose step takes as long as the `atom_impl` on its path says, so that a comparison's truth is known.

`atom_impl` is here a package of a few constants in a test's own repository: `STEP_US`, `ARTEFACT`, and `FAULT`.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import atom_impl
from harness.cells import Cell

PACED: Any = atom_impl


class PacedEngine:
    """Fits `harness.engines.base.Engine` without inheriting from it. A revision without `STEP_US` is too old for it."""

    name = "paced"

    def __init__(self) -> None:
        self.step_us: float = PACED.STEP_US

    def versions(self) -> dict[str, str]:
        return {"paced": "1.0"}

    def supports(self, cell: Cell) -> SimpleNamespace:
        return SimpleNamespace(ok=True, reason="")

    def open(self, cell: Cell, spec: Any) -> PacedSession:
        return PacedSession(self.step_us)


class PacedSession:
    vocab_size = 256

    def __init__(self, step_us: float) -> None:
        self._step_s = step_us / 1e6

    def encoder(self) -> None:
        return None

    def capture(self) -> dict[str, Any]:
        if PACED.FAULT == "raise":
            raise RuntimeError("operation not permitted when stream is capturing")
        if PACED.FAULT == "die":
            os._exit(9)
        return {}

    def step(self, batch: Any, arm: Any) -> None:
        end = time.perf_counter() + self._step_s
        while time.perf_counter() < end:
            pass

    def synchronize(self) -> None:
        return None

    def gates(self) -> list[tuple[str, str, float | None]]:
        return [("G1", "pass", 0.0)]

    def artefacts(self) -> dict[str, str]:
        return {"recording": PACED.ARTEFACT}

    def close(self) -> None:
        return None
