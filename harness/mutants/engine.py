"""The engine under test with a mutant's change in it, reached like any engine of a user's own.

Nothing outside this folder knows that mutants exist: a child names these two functions in HARNESS_ENGINES, and the
probes see an engine called `planted` and one called `control`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness.cells import DEFAULTS, Cell
from harness.engines import get_engine
from harness.engines.base import Engine, EngineSession, SessionSpec, Support
from harness.mutants import patching
from harness.mutants.findings import REACHED
from harness.mutants.mutant import Patch, Where, load_mutant

MUTANT_VARIABLE = "HARNESS_MUTANT"
PLANTED, CONTROL = "planted", "control"
_applied: set[str] = set()


class ChangedEngine(Engine):
    """The default engine in a process that one of the mutant's two patches has changed."""

    def __init__(self, side: str) -> None:
        path = os.environ.get(MUTANT_VARIABLE)
        if path is None:
            raise ValueError(f"{MUTANT_VARIABLE} is not set; it names the file of the mutant to plant")
        mutant = load_mutant(Path(path))
        self.name = side
        self._patch: Patch = mutant.plant if side == PLANTED else mutant.control
        self._engine = get_engine(DEFAULTS["engine"])
        if mutant.where is Where.COMMAND:
            self._apply()

    def versions(self) -> Mapping[str, str]:
        return self._engine.versions()

    def supports(self, cell: Cell) -> Support:
        return self._engine.supports(cell)

    def prepare(self, cell: Cell) -> None:
        self._engine.prepare(cell)

    def open(self, cell: Cell, spec: SessionSpec) -> EngineSession:
        self._apply()
        session = self._engine.open(cell, spec)
        counters = session.counters

        def with_reached() -> Mapping[str, int | float]:
            # One total: a name of the code that was changed may be one that a gate looks for.
            return {**counters(), **({REACHED: sum(patching.reached.values())} if patching.reached else {})}

        session.counters = with_reached  # type: ignore[method-assign]
        return session

    def _apply(self) -> None:
        """Once in each process: what a patch wraps it would otherwise wrap again."""
        if self.name not in _applied:
            _applied.add(self.name)
            self._patch()


def planted() -> Engine:
    return ChangedEngine(PLANTED)


def control() -> Engine:
    return ChangedEngine(CONTROL)
