"""An engine with one fault, for the side of a comparison that must be found slower.

HARNESS_ENGINES="atom_impl=harness.selftest.engine:FaultyEngine" HARNESS_SELFTEST_FAULT="slower step"
"""

from __future__ import annotations

import os

from harness.cells import Cell
from harness.engines import get_engine
from harness.engines.base import Engine, EngineSession, SessionSpec, Support
from harness.selftest.faults import put_into

FAULT_VARIABLE = "HARNESS_SELFTEST_FAULT"


class FaultyEngine(Engine):
    """The harness's own engine; a session that it opens has the fault that the environment names once it captured."""

    name = "atom_impl"

    def __init__(self) -> None:
        self._inner = get_engine("atom_impl")
        self._fault = os.environ[FAULT_VARIABLE]

    def versions(self) -> dict[str, str]:
        return dict(self._inner.versions())

    def supports(self, cell: Cell) -> Support:
        return self._inner.supports(cell)

    def open(self, cell: Cell, spec: SessionSpec) -> EngineSession:
        session = self._inner.open(cell, spec)
        put_into(session, self._fault, seed=0)
        return session
