"""A run arranged for reading: every declared cell with its fate, whether or not it left a record.

A comparison script that walked the results it found reported a crashed configuration by leaving it out. Every output
therefore walks the declared cells, and a cell without evidence stands there as not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from harness.cells import DEFAULTS
from harness.records import CellVerdict, Fate, GateResult, LaneRecord, Latency, Status
from harness.report.fates import Tone, fate_tone, gate_family, status_tone
from harness.report.figures import is_number
from harness.store import RunData, cell_of, unit_id

_FATE_ORDER = list(Fate)
_AXIS = re.compile(rf"(?:^|,)({'|'.join(DEFAULTS)})=")
#: Families of gates that compare a count or bytes; everything else is numerics, dispatch, time or an audit.
COUNT_FAMILIES = ("closed", "counter", "memory")


def axes_of(cell: str) -> dict[str, str]:
    """The axes that a cell's id spells out, as text; a model's name may itself hold commas and equals signs."""
    parts = _AXIS.split(cell)
    named = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: named.get(name, "" if default is None else str(default)) for name, default in DEFAULTS.items()}


@dataclass(frozen=True)
class GateView:
    """A gate as recorded, and the doubt that stops a recorded pass from being shown as one."""

    lane: str
    result: GateResult

    @property
    def hollow(self) -> bool:
        """A pass that names a limit but holds no finite figure. JSON has no NaN: it comes back as an absent figure."""
        if self.result.status is not Status.PASS:
            return False
        measured = self.result.measured
        return not is_number(measured) and (measured is not None or self.result.threshold is not None)

    @property
    def tone(self) -> Tone:
        return Tone.BAD if self.hollow else status_tone(self.result.status)

    @property
    def word(self) -> str:
        return "no figure" if self.hollow else self.result.status.value

    @property
    def is_count(self) -> bool:
        return gate_family(self.result.gate) in COUNT_FAMILIES


@dataclass(frozen=True)
class CellView:
    """One declared cell. `lanes` are its records in file order, without later launches that agree; `missing` are the
    lanes that were planned and left none.
    """

    id: str
    axes: Mapping[str, str]
    fate: Fate
    reason: str
    lanes: tuple[LaneRecord, ...]
    missing: tuple[str, ...]
    number: int

    @property
    def anchor(self) -> str:
        return f"cell-{self.number}"

    @property
    def short(self) -> str:
        """`L3 TR_HYBRID`: enough within a table of one model and workload."""
        return f"L{self.axes['level']} {self.axes['mode']}"

    @property
    def label(self) -> str:
        return f"level {self.axes['level']} · {self.axes['mode']} · {self.axes['workload']}"

    @cached_property
    def gates(self) -> tuple[GateView, ...]:
        return tuple(GateView(lane.lane, gate) for lane in self.lanes for gate in lane.gates)

    @cached_property
    def judged(self) -> list[GateView]:
        """The gates that could have failed."""
        return [g for g in self.gates if g.result.status not in (Status.REPORT, Status.NOT_APPLICABLE)]

    @cached_property
    def failed(self) -> list[GateView]:
        return [g for g in self.gates if g.tone is Tone.BAD]

    @cached_property
    def undecided(self) -> list[GateView]:
        return [g for g in self.gates if g.tone is Tone.OPEN]

    @property
    def passed_count(self) -> int:
        return sum(g.tone is Tone.GOOD for g in self.gates)

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """Why this cell's record cannot be taken at its word; empty for an honest one."""
        return tuple(_doubts(self))

    @property
    def tone(self) -> Tone:
        return Tone.BAD if self.doubts else fate_tone(self.fate)

    def latency(self, lane: str | None = None) -> list[Latency]:
        """The measured steps of `lane`; of the first lane that timed any if it is not named."""
        for record in self.lanes:
            if record.latency and lane in (None, record.lane):
                return record.latency
        return []

    def step(self, bucket: int, arm: str = "R") -> Latency | None:
        return next((x for x in self.latency() if x.arm == arm and x.bucket == bucket), None)


def _doubts(cell: CellView) -> Iterable[str]:
    if cell.fate is Fate.MEASURED:
        for lane in cell.lanes:
            if not any(g.lane == lane.lane for g in cell.judged):
                yield f"the {lane.lane} lane is recorded as measured, but no gate of it compared anything"
        for gate in cell.failed:
            if not gate.hollow:
                yield f"gate {gate.result.gate} failed in the {gate.lane} lane of a cell that is recorded as measured"
        if not cell.lanes:
            yield "recorded as measured, but the run holds no record of it"
    for gate in cell.gates:
        if gate.hollow:
            yield f"gate {gate.result.gate} in the {gate.lane} lane is recorded as a pass without a finite figure"
    for lane in cell.lanes:
        for steps in lane.latency:
            if not sound(steps):
                where = f"arm {steps.arm} at bucket {steps.bucket}"
                yield f"the {lane.lane} lane's times of {where} are empty or not finite"


def sound(steps: Latency) -> bool:
    """Whether a latency is one: at least one sample, and every figure finite."""
    return bool(steps.samples_us) and all(
        is_number(x) for x in (steps.median_us, steps.p25_us, steps.p75_us, *steps.samples_us)
    )


def cell_views(run: RunData) -> list[CellView]:
    """Every declared cell in plan order, then any cell that was recorded without being declared."""
    lanes: dict[str, list[LaneRecord]] = {}
    for lane in run.lanes:
        lanes.setdefault(lane.cell, []).append(lane)
    verdicts = {cell.cell: cell for cell in run.verdict.cells} if run.verdict else {}
    ids = list(dict.fromkeys([*run.header.cells, *lanes, *verdicts]))
    return [
        _cell_view(run, number, cell, lanes.get(cell, []), verdicts.get(cell)) for number, cell in enumerate(ids, 1)
    ]


def _cell_view(run: RunData, number: int, cell: str, lanes: list[LaneRecord], verdict: CellVerdict | None) -> CellView:
    recorded = {unit_id(cell, lane.lane, lane.launch) for lane in lanes}
    planned = [unit for unit in run.header.units if cell_of(unit) == cell]
    missing = tuple(unit.rpartition("#")[2] for unit in planned if unit not in recorded)
    fate, reason = (verdict.fate, verdict.reason) if verdict else _fate_so_far(run, cell, lanes, missing)
    return CellView(cell, axes_of(cell), fate, reason, tuple(_shown(lanes)), missing, number)


def _shown(lanes: Iterable[LaneRecord]) -> Iterable[LaneRecord]:
    """The first launch of every lane, and of the later ones those that went wrong, under a name of their own: sixty
    launches that agree are one sentence in the cell's reason.
    """
    for lane in lanes:
        if lane.launch == 0:
            yield lane
        elif lane.fate is not Fate.MEASURED or any(gate.status is Status.FAIL for gate in lane.gates):
            yield msgspec.structs.replace(lane, lane=f"{lane.lane}, launch {lane.launch}")


def _fate_so_far(run: RunData, cell: str, lanes: list[LaneRecord], missing: tuple[str, ...]) -> tuple[Fate, str]:
    """The fate of a cell that no verdict covers: the worst lane's, and never measured while a lane is missing."""
    if cell in run.header.declared:
        return Fate.UNSUPPORTED, run.header.declared[cell]
    worst = min(lanes, key=lambda lane: _FATE_ORDER.index(lane.fate), default=None)
    if worst is not None and (worst.fate is not Fate.MEASURED or not missing):
        return worst.fate, worst.reason
    return Fate.NOT_RUN, f"no record of the {' and '.join(missing)} lane" if missing else "no record"


@dataclass(frozen=True)
class Matrix:
    """Level and workload against mode, for cells that agree on every other axis."""

    title: str
    modes: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]  # (workload, level)
    at: Mapping[tuple[str, str, str], CellView]  # (workload, level, mode)

    @property
    def cells(self) -> list[CellView]:
        return list(self.at.values())

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(workload for workload, _ in self.rows))

    def of_workload(self, workload: str) -> list[CellView]:
        return [cell for cell in self.cells if cell.axes["workload"] == workload]


def matrices(cells: list[CellView]) -> list[Matrix]:
    """One matrix for each combination of the axes that are neither level, mode nor workload, in plan order."""
    shared = ("level", "mode", "workload")
    groups: dict[tuple[str, ...], list[CellView]] = {}
    for cell in cells:
        groups.setdefault(tuple(v for k, v in cell.axes.items() if k not in shared), []).append(cell)
    return [_matrix(group) for group in groups.values()]


def _matrix(cells: list[CellView]) -> Matrix:
    axes = cells[0].axes
    plain = {name: "" if value is None else str(value) for name, value in DEFAULTS.items()}
    others = [f"{k} {v}" for k, v in axes.items() if k not in ("model", "level", "mode", "workload") and v != plain[k]]
    return Matrix(
        title=" · ".join([axes["model"], *others]),
        modes=tuple(dict.fromkeys(cell.axes["mode"] for cell in cells)),
        rows=tuple(dict.fromkeys((cell.axes["workload"], cell.axes["level"]) for cell in cells)),
        at={(cell.axes["workload"], cell.axes["level"], cell.axes["mode"]): cell for cell in cells},
    )


def worst_first(gates: Iterable[GateView]) -> list[GateView]:
    """What failed, then what is undecided, then the rest, each in the order of the probes."""
    order = {Tone.BAD: 0, Tone.OPEN: 1}
    return sorted(gates, key=lambda gate: order.get(gate.tone, 2))


def buckets_of(cells: Iterable[CellView]) -> list[int]:
    """Every bucket that any of `cells` timed, ascending."""
    return sorted({steps.bucket for cell in cells for steps in cell.latency()})
