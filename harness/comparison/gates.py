"""What a comparison decided, as gates and lane records: the same verdict, report and `explain` as any other run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.comparison.course import CellCourse, Course
from harness.comparison.matrix import Judgement, Outcome
from harness.comparison.pairs import CANDIDATE
from harness.records import GateResult, LaneRecord, Latency, PairRecord, Phase, Status
from harness.soundness import plain
from harness.stats import quartiles
from harness.verdicts import lane_fate

_STATUS = {
    Outcome.PASS: Status.PASS,
    Outcome.FAIL: Status.FAIL,
    Outcome.FASTER: Status.FAIL,
    Outcome.INCONCLUSIVE: Status.INCONCLUSIVE,
}


def cell_gates(cell: CellCourse, course: Course, final: Mapping[str, Judgement]) -> list[GateResult]:
    """One gate for each bucket of the cell, and one that says whether what runs is the same on both sides."""
    own = {
        item.rpartition("@")[2]: judged for item, judged in final.items() if item.startswith(f"{cell.unit.cell.id}@")
    }
    gates = [_gate(bucket, judged, course) for bucket, judged in own.items()]
    return [*gates, _artefacts(cell, course)] if gates else []


def lane_record(
    cell: CellCourse, course: Course, final: Mapping[str, Judgement], pairs: Sequence[PairRecord]
) -> LaneRecord:
    """A compared cell as a record: arm R is the candidate."""
    unit, failure = cell.unit, cell.failure
    own = [pair for pair in pairs if pair.cell == unit.cell.id]
    gates = cell_gates(cell, course, final)
    fate, reason = (failure.fate, str(failure)) if failure else lane_fate(gates)
    return LaneRecord(
        cell=unit.cell.id,
        axes=plain(unit.cell.as_dict()),
        lane=unit.lane,
        dtype=unit.dtype,
        fate=fate,
        reason=reason,
        phase=Phase.TIMING,
        gates=gates,
        latency=[] if failure else _latencies(cell, own),
        counters={"pairs": len(own), "timed_again": _sum(own, "timed_again"), "disturbed": _sum(own, "disturbed")},
        artefacts=dict(cell.opened.artefacts[CANDIDATE]) if cell.opened else {},
        output_tail=failure.output_tail if failure else "",
        stack=failure.stack if failure else "",
        started=own[0].started if own else "",
    )


def _sum(pairs: Sequence[PairRecord], name: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for pair in pairs:
        total.update(getattr(pair, name))
    return dict(total)


def _gate(bucket: str, judged: Judgement, course: Course) -> GateResult:
    family = "unaccepted.step_time" if judged.outcome is Outcome.FASTER else "latency.compare"
    found = judged.estimate
    return GateResult(
        gate=f"{family}.{bucket}",
        status=_STATUS[judged.outcome],
        message=f"arm R at bucket {bucket}, candidate over baseline: {judged.sentence}",
        measured=found.change if found else None,
        threshold=course.budget.change,
        evidence=plain({**vars(found), "looks": course.plan.pairs}) if found else {},
    )


def _artefacts(cell: CellCourse, course: Course) -> GateResult:
    changed = cell.changed
    if course.nothing_differs(cell.unit.cell.id):
        text = "sources, versions and artefacts are the same on both sides"
    elif changed:
        text = f"these differ between the sides: {', '.join(changed)}"
    else:
        text = "artefacts are the same and the engine's sources or its software differ: look at host code first"
    return GateResult(
        gate="latency.artefacts",
        status=Status.REPORT,
        message=text,
        measured=float(len(changed)),
        evidence=course.versions,
    )


def _latencies(cell: CellCourse, pairs: Sequence[PairRecord]) -> list[Latency]:
    """All samples of the candidate at each bucket, as arm R."""
    table: dict[int, list[float]] = {}
    for pair in pairs:
        samples = table.setdefault(int(pair.item.rpartition("@")[2]), [])
        for key, block in zip(pair.order, pair.blocks_us, strict=True):
            samples += block if key == CANDIDATE else []
    phase = cell.opened.phase if cell.opened else ""
    return [_latency(phase, bucket, samples) for bucket, samples in sorted(table.items())]


def _latency(phase: str, bucket: int, samples: list[float]) -> Latency:
    box = quartiles(samples, "candidate sample")
    return Latency(
        arm="R",
        phase=phase,
        batch=bucket,
        bucket=bucket,
        median_us=box.median,
        p25_us=box.p25,
        p75_us=box.p75,
        samples_us=samples,
    )
