"""What a run comes to, before any of its details: the verdict, the worst facts, and whether the record adds up.

A job that had executed nothing ended with a green exit code, and was believed. The summary counts again what the file
holds and says so where that disagrees with what the verdict claims.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from harness.errors import INCOMPLETE, PASS
from harness.records import Fate, GateResult, Status
from harness.report.fates import Tone, exit_meaning, gate_family, gate_title
from harness.report.view import CellView, Matrix, axes_of, cell_views, matrices
from harness.store import RunData, recorded_units, unit_id
from harness.verdicts import NO_BASELINE

_FATE_ORDER = list(Fate)
#: Most telling first: a replay that differs explains a wrong token, not the other way round.
_GATE_ORDER = ("G1", "audit", "G2", "G3", "G6", "G5", "G4", "G0", "dispatch", "ladder", "closed", "counter")

NOT_GATED_WITHOUT_BASELINE = (
    "step time against an earlier release",
    "slow drift over many commits",
    "the change of exact costs (copies, compiles, pool bytes)",
    "the change of the compiler's error ratio (G3)",
)
GATED_WITHOUT_BASELINE = "numerics, dispatch, and every exact count against its closed form"


@dataclass(frozen=True)
class Fact:
    """One thing that went wrong: where it was first seen, and in how many more cells it was seen again."""

    cell: CellView
    what: str
    sentence: str
    again: int


@dataclass(frozen=True)
class Accounting:
    """Units (one cell in one dtype). `recounted` is what the file really holds."""

    expected: int
    executed: int
    stored: int
    reported: int
    recounted: int

    @property
    def balanced(self) -> bool:
        return len({self.expected, self.executed, self.stored, self.reported, self.recounted}) == 1


@dataclass(frozen=True)
class Summary:
    """A run ready for any output. `doubts` are contradictions within the record; a sound record has none."""

    run: RunData
    cells: list[CellView]
    matrices: list[Matrix]
    accounting: Accounting

    @classmethod
    def of(cls, run: RunData) -> Summary:
        cells = cell_views(run)
        return cls(run, cells, matrices(cells), _accounting(run))

    @property
    def complete(self) -> bool:
        return self.run.verdict is not None

    @property
    def exit_code(self) -> int:
        return self.run.verdict.exit_code if self.run.verdict else INCOMPLETE

    @property
    def exit_meaning(self) -> str:
        return exit_meaning(self.exit_code)

    @property
    def unjudged(self) -> bool:
        """Whether the run was only asked to measure, and did: it has all its records and no verdict."""
        return not self.complete and self.run.header.kind == "run" and self.accounting.balanced

    @property
    def title(self) -> str:
        if self.run.verdict:
            return self.run.verdict.title
        if self.unjudged:
            return "NO VERDICT: measured only"
        left = self.accounting.expected - self.accounting.recounted
        return f"INCOMPLETE: {left} of {self.accounting.expected} units have no record"

    @property
    def reasons(self) -> list[str]:
        if self.run.verdict:
            return [reason for reason in self.run.verdict.reasons if reason != NO_BASELINE]  # every output has its own
        if self.unjudged:
            return ["`harness run` measures and does not judge; `harness signoff` does."]
        return ["The run was interrupted before its verdict. What it recorded is below; the same command resumes it."]

    @property
    def notes(self) -> list[str]:
        """The reasons that are not one cell's own: those stand in `facts`, grouped and with their evidence."""
        own = tuple(f"{cell.id} is " for cell in self.cells)
        return [reason for reason in self.reasons if not reason.startswith(own)]

    @property
    def tone(self) -> Tone:
        if not self.complete:
            return Tone.OPEN
        if self.doubts or self.exit_code not in (PASS, INCOMPLETE):
            return Tone.BAD
        return Tone.GOOD if self.exit_code == PASS else Tone.OPEN

    @property
    def fate_counts(self) -> list[tuple[Fate, int]]:
        counts = Counter(cell.fate for cell in self.cells)
        return sorted(counts.items(), key=lambda item: _FATE_ORDER.index(item[0]))

    @property
    def baseline(self) -> str:
        return self.run.verdict.baseline if self.run.verdict else ""

    @cached_property
    def facts(self) -> list[Fact]:
        """Everything that went wrong, most severe first; the same failure in several cells is one fact."""
        found: dict[tuple[Fate, str], list[tuple[CellView, str]]] = {}
        for cell in self.cells:
            for what, sentence in _went_wrong(cell):
                seen = found.setdefault((cell.fate, what), [])
                if not any(earlier is cell for earlier, _ in seen):
                    seen.append((cell, sentence))
        ranked = sorted(found.items(), key=lambda item: (_FATE_ORDER.index(item[0][0]), _gate_rank(item[0][1])))
        return [Fact(seen[0][0], what, seen[0][1], len(seen) - 1) for (_, what), seen in ranked]

    @cached_property
    def doubts(self) -> list[str]:
        return [*_run_doubts(self), *(f"{cell.id}: {doubt}" for cell in self.cells for doubt in cell.doubts)]

    @property
    def command(self) -> str:
        return shlex.join(self.run.header.command)

    @cached_property
    def varying(self) -> set[str]:
        """The axes in which declared cells differ."""
        return {axis for axis in axes_of("") if len({cell.axes[axis] for cell in self.cells}) > 1}


def _accounting(run: RunData) -> Accounting:
    units = recorded_units(run)
    verdict = run.verdict
    if verdict is None:
        return Accounting(len(run.header.units), len(units), len(units), len(units), len(units))
    return Accounting(verdict.expected, verdict.executed, verdict.stored, verdict.reported, len(units))


def _went_wrong(cell: CellView) -> Iterable[tuple[str, str]]:
    """(what, sentence) for each failed gate; for a cell without any, what ended it."""
    if cell.tone not in (Tone.BAD, Tone.OPEN):
        return
    gates = cell.failed or cell.undecided
    for gate in gates:
        yield gate_title(gate.result.gate), gate_sentence(gate.result)
    for lane in cell.lanes:
        if lane.fate in (Fate.CRASHED, Fate.HUNG, Fate.TEARDOWN_CRASHED):
            yield f"in {lane.phase.value}", lane.reason or cell.reason
    if not gates and all(lane.fate is Fate.MEASURED for lane in cell.lanes):
        yield cell.fate.value, cell.reason or "; ".join(cell.doubts)


def gate_sentence(gate: GateResult) -> str:
    """The gate's own sentence; a gate that left none is still named."""
    return gate.message or f"{gate_title(gate.gate)} is recorded as {gate.status.value} without a message."


def _gate_rank(what: str) -> int:
    family = gate_family(what.split(" ", 1)[0])
    return _GATE_ORDER.index(family) if family in _GATE_ORDER else len(_GATE_ORDER)


def _run_doubts(summary: Summary) -> Iterable[str]:
    run, verdict = summary.run, summary.run.verdict
    if run.header.probes:
        yield f"not measured by the harness's own probes but by {run.header.probes}"
    if run.damaged_lines:
        yield f"{run.damaged_lines} damaged lines of the records could not be read; their units count as not run"
    undeclared = [cell.id for cell in summary.cells if cell.id not in set(run.header.cells)]
    if undeclared:
        yield f"recorded but never declared: {', '.join(undeclared)}"
    twice = [unit for unit, n in Counter(unit_id(x.cell, x.lane, x.launch) for x in run.lanes).items() if n > 1]
    if twice:
        yield f"recorded more than once: {', '.join(twice)}"
    if verdict is None:
        return
    judged = {cell.cell for cell in verdict.cells}
    forgotten = [cell for cell in run.header.cells if cell not in judged]
    if forgotten:
        yield f"declared, but the verdict does not mention: {', '.join(forgotten)}"
    if verdict.exit_code == PASS and not summary.accounting.balanced:
        yield "the verdict is a pass although expected, executed, stored and reported do not agree"
    red = sum(cell.tone in (Tone.BAD, Tone.OPEN) for cell in summary.cells)
    if verdict.exit_code == PASS and red:
        yield f"the verdict is a pass although {red} of {len(summary.cells)} cells are not green"


def cell_command(summary: Summary, cell: CellView) -> str:
    """The command that runs this cell alone, under the same profile, device and narrowing."""
    header = summary.run.header
    parts = ["harness", "run", "--profile", _option(header.command, "--profile") or header.profile]
    parts += ["--device", header.device]
    for axis in ("engine", "model", "level", "mode", "workload", "ladder"):
        told_apart = axis in ("level", "mode", "workload") or axis in summary.varying or axis in header.filters
        if cell.axes[axis] and told_apart:
            parts += [f"--{axis}", cell.axes[axis].replace("-", ",") if axis == "ladder" else cell.axes[axis]]
    for axis in ("dtype", "seed"):
        parts += [word for value in header.filters.get(axis, []) for word in (f"--{axis}", value)]
    results = _option(header.command, "--results")
    return shlex.join([*parts, *(["--results", results] if results else []), "--fresh"])


def explain_command(run: RunData, cell: CellView) -> str:
    return shlex.join(["harness", "explain", cell.id, "--run", run.header.run])


def _option(command: list[str], name: str) -> str:
    """The value of `name` in a command line, in either spelling; empty if it is not there."""
    for position, word in enumerate(command):
        if word == name and position + 1 < len(command):
            return command[position + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


def status_counts(cell: CellView) -> str:
    """`28 of 28 gates passed, 3 reported`."""
    judged = cell.judged
    if not judged:
        return "no gate compared anything"
    reported = sum(g.result.status is Status.REPORT for g in cell.gates)
    tail = f", {reported} reported" if reported else ""
    return f"{cell.passed_count} of {len(judged)} gates passed{tail}"
