"""From gates to a lane's fate, from lanes to a cell's, from cells to one verdict and one exit code.

Missing data read as success is the commonest fault of harnesses, so everything here is held against what was declared,
and what is not there is `not-run`, which is red.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from harness import debug_replay
from harness.errors import FAILED, FAULT, INCOMPLETE, PASS, UNFIT, first_exit_code
from harness.records import AddedGates, CellVerdict, Fate, GateResult, LaneRecord, RunHeader, Status, Verdict
from harness.standing import Standing
from harness.stats import binomial_upper_bound, exact_rate
from harness.store import SERVING, RunData, cell_of, recorded_units, unit_id
from harness.waivers import apply, expired, unused

PRECEDENCE = tuple(Fate)
GREEN = frozenset({Fate.MEASURED, Fate.WAIVED, Fate.UNSUPPORTED})
#: The fate that a failed gate of each family means. A family that nobody listed is wrong: no new gate may fail quietly.
FAMILY_FATES = {
    "dispatch": Fate.DOWNGRADED,
    "closed": Fate.COST_CHANGED,
    "counter": Fate.COST_CHANGED,
    "memory": Fate.COST_CHANGED,
    "latency": Fate.SLOWER,
    "unaccepted": Fate.FASTER,
    "calibration": Fate.UNFIT,  # the machine cannot time: nothing is said about the engine
}
_EXIT_CODES = {
    Fate.INCONCLUSIVE: INCOMPLETE,
    Fate.FASTER: INCOMPLETE,
    Fate.NOT_RUN: INCOMPLETE,
    Fate.UNFIT: UNFIT,
    **dict.fromkeys(GREEN, PASS),
}
NO_BASELINE = (
    "No baseline: step times, pool bytes and counts were not compared with an earlier release; "
    "what needs none was gated (numerics, dispatch, closed forms of exact counts)."
)


def first_fate(fates: Iterable[Fate]) -> Fate:
    """The fate that holds where several do. A green one holds only if all are green: half a cell is not measured."""
    several = list(fates)
    return min([fate for fate in several if fate not in GREEN] or several, key=PRECEDENCE.index)


def lane_fate(gates: Sequence[GateResult]) -> tuple[Fate, str]:
    """What a lane's gates decide, with the sentence of the gate that decided it.

    A lane in which no gate passed or failed measured nothing: it is `not-run`, and a fault of the harness.
    """
    named = [(_gate_fate(gate), gate) for gate in gates]
    decisive = [(fate, gate) for fate, gate in named if fate is not Fate.MEASURED]
    if decisive:
        fate = first_fate(fate for fate, _ in decisive)
        gate = next(gate for found, gate in decisive if found is fate)
        return fate, f"{gate.gate}: {gate.message}"
    if not any(gate.status is Status.PASS for gate in gates):
        return Fate.NOT_RUN, "no gate was decided, so nothing was shown"
    return Fate.MEASURED, ""


def added_gates(lane: LaneRecord, gates: Sequence[GateResult], failure: tuple[Fate, str] | None = None) -> AddedGates:
    """`gates` for `lane`, with the fate and reason that all of its gates, and a `failure` beside them, leave it."""
    found = [(lane.fate, lane.reason), lane_fate([*lane.gates, *gates]), *([failure] if failure else [])]
    holds = first_fate(fate for fate, _ in found)
    reason = next(reason for fate, reason in found if fate is holds)
    return AddedGates(cell=lane.cell, lane=lane.lane, launch=lane.launch, gates=list(gates), fate=holds, reason=reason)


def conclude(
    run: RunData, *, executed: int, finished: str, seconds: float, standing: Standing | None = None
) -> Verdict:
    """One verdict for a run. `executed` units had an outcome by the executor's own count.

    The four counts are taken from four places (header, executor, file, verdicts) and must agree.
    """
    header, held = run.header, standing or Standing()
    plain = [_judge(cell, header, run.lanes) for cell in header.cells]
    cells = [apply(cell, held.waivers, held.today) for cell in plain]
    declared_units = set(header.units)
    judged = {cell.cell for cell in cells} - set(header.declared)
    reported = len({unit for unit in recorded_units(run) if cell_of(unit) in judged})
    counts = {
        "expected": len(header.units),
        "executed": executed,
        "stored": len(run.lanes),
        "reported": reported,
    }
    codes = [_EXIT_CODES.get(cell.fate, FAILED) for cell in cells]
    problems = _accounting_problems(counts, run, declared_units)
    faults = _faults(run)
    codes += [FAULT] * bool(faults)
    if header.profile_text.get("baseline_required") and not held.baseline:
        problems.append(f"Profile {header.profile} requires a baseline, and there is none.")
    debugged = debug_replay.problems(header, run.lanes)
    problems += debugged
    problems += held.problems
    codes += [INCOMPLETE] * bool(problems)
    overdue = expired(held.waivers, header.cells, held.today)
    codes += [FAILED] * bool(overdue)
    code = first_exit_code(codes)
    return Verdict(
        run=header.run,
        exit_code=code,
        title=_title(code, cells, header, len(set(counts.values())) > 1, bool(debugged)),
        reasons=[
            *faults,
            *_red_reasons(cells),
            *overdue,
            *problems,
            *_waived_reasons(cells),
            *unused(held.waivers, plain, held.today),
            *launch_reasons(cells),
            *_scope_reasons(header, run),
            *held.notes,
            *([] if held.baseline else [NO_BASELINE]),
        ],
        cells=cells,
        baseline=held.baseline,
        finished=finished,
        seconds=seconds,
        **counts,
    )


def _gate_fate(gate: GateResult) -> Fate:
    if gate.status is Status.FAIL:
        return FAMILY_FATES.get(gate.gate.split(".", 1)[0], Fate.WRONG)
    return Fate.INCONCLUSIVE if gate.status is Status.INCONCLUSIVE else Fate.MEASURED


def _lanes_of(cell: str, lanes: Iterable[LaneRecord]) -> list[LaneRecord]:
    return [lane for lane in lanes if lane.cell == cell]


def _judge(cell: str, header: RunHeader, lanes: Sequence[LaneRecord]) -> CellVerdict:
    """One cell's verdict, by precedence over its lanes, its missing lanes and its ladder's holes."""
    if cell in header.declared:
        return CellVerdict(cell=cell, fate=Fate.UNSUPPORTED, reason=header.declared[cell])
    own = _lanes_of(cell, lanes)
    found: list[tuple[Fate, str]] = [(_checked_fate(lane), _lane_reason(lane)) for lane in own]
    missing = _missing_lanes(cell, header, own)
    if missing:
        found.append((Fate.NOT_RUN, f"no record of lane {', '.join(missing)}"))
    if cell in header.holes:
        found.append((Fate.DOWNGRADED, f"a hole in the ladder: {header.holes[cell]}"))
    fate = first_fate(fate for fate, _ in found)
    reason = next(reason for known, reason in found if known is fate)
    gates = [(lane, gate) for lane in own for gate in lane.gates]
    failed = [f"{gate.gate} ({_lane_name(lane)})" for lane, gate in gates if gate.status is Status.FAIL]
    launched = [lane for lane in own if lane.lane == SERVING]
    bad = sum(_checked_fate(lane) is not Fate.MEASURED for lane in launched)
    if len(launched) > 1:
        reason = f"{reason}; bad launches: {exact_rate(bad, len(launched))}"
    return CellVerdict(
        cell=cell,
        fate=fate,
        reason=reason,
        gates=len(gates),
        failed=list(dict.fromkeys(failed)),
        launches=len(launched),
        bad_launches=bad,
    )


def launch_reasons(cells: Iterable[CellVerdict]) -> list[str]:
    """What the number of fresh processes bounds, for the cell that had the fewest of them."""
    launched = [cell for cell in cells if cell.launches]
    if not launched:
        return []
    fewest = min(cell.launches for cell in launched)
    bad = sum(cell.bad_launches > 0 for cell in launched)
    if bad and fewest == 1:
        return []  # each red cell says it itself
    if bad:
        return [f"{bad} of {len(launched)} cells had a bad launch, each cell's verdict says in how many."]
    bound = 100 * binomial_upper_bound(0, fewest)
    each = "once" if fewest == 1 else f"afresh {fewest} times"
    return [
        f"Every cell was launched {each} and no launch was bad: at 95 % that bounds bad launches below {bound:.3g} %."
    ]


def _checked_fate(lane: LaneRecord) -> Fate:
    """The lane's fate, held against its own gates: a record that claims to be measured must show it."""
    if lane.fate is not Fate.MEASURED:
        return lane.fate
    return lane_fate(lane.gates)[0]


def _lane_reason(lane: LaneRecord) -> str:
    fate = _checked_fate(lane)
    if fate is Fate.MEASURED:
        return "every gate passed"
    reason = lane.reason or lane_fate(lane.gates)[1] or f"ended in phase {lane.phase.value}"
    return f"{reason} (lane {_lane_name(lane)}, {lane.dtype})"


def _lane_name(lane: LaneRecord) -> str:
    return f"{lane.lane}, launch {lane.launch}" if lane.launch else lane.lane


def _missing_lanes(cell: str, header: RunHeader, own: Sequence[LaneRecord]) -> list[str]:
    wanted = [unit for unit in header.units if cell_of(unit) == cell]
    present = {unit_id(cell, lane.lane, lane.launch) for lane in own}
    return [unit.rpartition("#")[2] for unit in wanted if unit not in present] or ([] if wanted else ["any"])


def _accounting_problems(counts: dict[str, int], run: RunData, declared: set[str]) -> list[str]:
    problems = []
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name} {count}" for name, count in counts.items())
        problems.append(f"The counts of units disagree ({text}); they must be equal.")
    unknown = sorted(recorded_units(run) - declared)
    if unknown:
        problems.append(f"{len(unknown)} recorded units were never declared, the first is {unknown[0]}.")
    return problems


def _faults(run: RunData) -> list[str]:
    empty = defaultdict(list)
    for lane in run.lanes:
        if lane.fate in (Fate.MEASURED, Fate.NOT_RUN) and lane_fate(lane.gates)[0] is Fate.NOT_RUN:
            empty[lane.cell].append(lane.lane)
    return [
        f"A fault of the harness: {cell} ({', '.join(lanes)}) ended without one decided gate."
        for cell, lanes in empty.items()
    ]


def _red_reasons(cells: Iterable[CellVerdict]) -> list[str]:
    red = sorted((c for c in cells if c.fate not in GREEN), key=lambda c: PRECEDENCE.index(c.fate))
    return [f"{c.cell} is {c.fate.value}: {c.reason}" for c in red]


def _waived_reasons(cells: Iterable[CellVerdict]) -> list[str]:
    return [f"{c.cell} is {c.reason}" for c in cells if c.fate is Fate.WAIVED]


def _scope_reasons(header: RunHeader, run: RunData) -> list[str]:
    reasons = []
    if header.declared:
        reasons.append(
            f"{len(header.declared)} of {len(header.cells)} cells are declared unsupported, each with a reason."
        )
    if header.filters:
        narrowed = "; ".join(f"{name} {', '.join(values)}" for name, values in header.filters.items())
        reasons.append(f"Not the whole profile: the command line set {narrowed}.")
    if run.damaged_lines:
        reasons.append(f"{run.damaged_lines} damaged lines in the records were left out; their units count as not run.")
    if header.probes:
        reasons.append(f"Not a sign-off: the probes were replaced by {header.probes}.")
    return reasons


def _incomplete(counts_differ: bool) -> str:
    return "INCOMPLETE: the counts disagree" if counts_differ else "INCOMPLETE: see the reasons"


def _title(
    code: int, cells: Sequence[CellVerdict], header: RunHeader, counts_differ: bool, debugged: bool = False
) -> str:
    judged = [cell for cell in cells if cell.fate is not Fate.UNSUPPORTED]
    fates = Counter(cell.fate for cell in judged)
    red = {fate: n for fate, n in fates.items() if fate not in GREEN}
    failed = sum(n for fate, n in red.items() if _EXIT_CODES.get(fate, FAILED) == FAILED)
    total = f"of {len(judged)} cells"
    titles = {
        FAULT: "FAULT: the harness is wrong, so nothing is said about the engine",
        UNFIT: f"UNFIT: {fates[Fate.UNFIT]} {total}",
        FAILED: f"FAIL: {failed} {total}" if failed else "FAIL: a waiver has expired",
        INCOMPLETE: f"INCOMPLETE: {sum(red.values())} {total} undecided" if red else _incomplete(counts_differ),
        PASS: f"PASS: {len(judged)} {total}" + (f", {fates[Fate.WAIVED]} waived" if fates[Fate.WAIVED] else ""),
    }
    scope = [f"narrowed from profile {header.profile}"] * bool(header.filters) + ["other probes"] * bool(header.probes)
    scope += ["debug replay: no kernel was replayed"] * debugged
    return titles[code] + (f" ({', '.join(scope)})" if scope else "")
