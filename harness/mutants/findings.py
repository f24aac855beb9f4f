"""What one run's records say against a cell: failed gates, a crash or a hang with its phase, a cell that was not run.

Only the record counts. A fault that printed a warning and left a green record was not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.errors import FAULT
from harness.records import CellVerdict, Fate, LaneRecord, Status
from harness.store import RunData
from harness.verdicts import GREEN

#: What a changed engine adds to its counters: how often the code that a mutant wraps was entered.
REACHED = "changed_code_entered"
_ENDED = (Fate.CRASHED, Fate.HUNG, Fate.TEARDOWN_CRASHED)


@dataclass(frozen=True)
class Finding:
    """One thing that the record holds against a cell. `name` is what a mutant's `caught_by` may list."""

    name: str
    message: str


def findings(run: RunData, engine: str) -> list[Finding]:
    """Everything that the run says against the cells of `engine`, gates in the order in which they were judged."""
    lanes = [lane for lane in run.lanes if lane.axes["engine"] == engine]
    found = [finding for lane in lanes for finding in _of_lane(lane)]
    if run.verdict is None:
        return [*found, Finding("no verdict", "the run ended without a verdict")]
    if not found:
        found += [Finding(cell.fate.value, cell.reason) for cell in _red_cells(run, engine)]
    if run.verdict.exit_code == FAULT:
        found.append(Finding("fault", run.verdict.title))
    return found


def gates_seen(run: RunData, engine: str) -> dict[str, bool]:
    """Every gate that judged a lane of `engine`, and whether it failed any."""
    seen: dict[str, bool] = {}
    for lane in run.lanes:
        for gate in lane.gates:
            if lane.axes["engine"] == engine and gate.status in (Status.PASS, Status.FAIL):
                seen[gate.gate] = seen.get(gate.gate, False) or gate.status is Status.FAIL
    return seen


def reached(run: RunData, engine: str) -> int | None:
    """How often the changed callables were entered; None where nothing counts them or no lane lived to say so."""
    counters = [lane.counters.get("engine") or {} for lane in run.lanes if lane.axes["engine"] == engine]
    counts = [int(counter[REACHED]) for counter in counters if REACHED in counter]
    return sum(counts) if counts else None


def _of_lane(lane: LaneRecord) -> Iterator[Finding]:
    for gate in lane.gates:
        if gate.status in (Status.FAIL, Status.INCONCLUSIVE):
            yield Finding(gate.gate, gate.message)
    if lane.fate in _ENDED:
        yield Finding(f"{lane.fate.value} in {lane.phase.value}", lane.reason)


def _red_cells(run: RunData, engine: str) -> list[CellVerdict]:
    assert run.verdict is not None
    declared = f"engine={engine}"
    return [c for c in run.verdict.cells if c.fate not in GREEN and declared in c.cell.split(",")]
