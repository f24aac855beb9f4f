"""A run as one self-contained page: no network, no script, the evidence of every cell within it.

A report that loads its plots from a network is blank on a machine that has none, and in every archive a year later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from harness.records import GateResult, LaneRecord, Latency
from harness.report import fates, figures
from harness.report.files import write_text
from harness.report.parts import PART_MEANINGS, anatomy, copies, edge_plot
from harness.report.planted import planted_faults
from harness.report.summary import (
    GATED_WITHOUT_BASELINE,
    NOT_GATED_WITHOUT_BASELINE,
    Summary,
    cell_command,
    explain_command,
    status_counts,
)
from harness.report.svg import ARM_NAMES, arm_sorted, staircase, strip_plot
from harness.report.view import CellView, GateView, Matrix, buckets_of, sound, worst_first
from harness.store import RunData

_TEMPLATE = "template.html.j2"
_WORST = 3
#: On a page of more cells than this, steps are drawn apart in the cells that are not green.
_ALL_APART = 100
_OPEN_AT_ONCE = 5
_EVIDENCE_LINES = 24


def write_html(run: RunData, path: Path) -> None:
    """Write the page to `path`, whole or not at all. Raises `UsageError` if the folder cannot be written."""
    write_text(path, render_html(run))


def render_html(run: RunData) -> str:
    summary = Summary.of(run)
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            s=summary,
            run=run,
            header=run.header,
            worst=summary.facts[:_WORST],
            facts_left=max(len(summary.facts) - _WORST, 0),
            planted=planted_faults(with_rows=len(summary.cells) <= _ALL_APART),
            not_gated=NOT_GATED_WITHOUT_BASELINE,
            gated=GATED_WITHOUT_BASELINE,
            opened={
                cell.id for cell in [c for c in summary.cells if c.failed or c.tone is fates.Tone.BAD][:_OPEN_AT_ONCE]
            },
            families=sorted(
                {fates.gate_family(g.result.gate) for c in summary.cells for g in c.gates} & set(fates.GATE_CLAIMS)
            ),
            taken_apart=_taken_apart(summary),
            part_meanings=sorted(PART_MEANINGS.items()) if any(anatomy(c) for c in summary.cells) else [],
            arms=[
                (arm, ARM_NAMES[arm])
                for arm in ARM_NAMES
                if any(x.arm == arm for c in summary.cells for x in c.latency())
            ],
        )
    )


def _taken_apart(summary: Summary) -> set[str]:
    """The cells whose steps are drawn apart: a page of a thousand plots is not read, and hardly loaded."""
    few = len(summary.cells) <= _ALL_APART
    return {cell.id for cell in summary.cells if few or cell.tone in (fates.Tone.BAD, fates.Tone.OPEN)}


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": figures.clean,
        "figure": figures.figure,
        "duration": figures.seconds,
        "moment": moment,
        "flat": figures.flat,
        "evidence": evidence_lines,
    }
    environment.globals |= {
        "marks": {tone.value: mark for tone, mark in fates.MARKS.items()},
        "fates": fates,
        "headline": headline,
        "gate_groups": gate_groups,
        "recordings": recordings,
        "capture_facts": capture_facts,
        "other_counters": other_counters,
        "latency_tables": latency_tables,
        "staircases": staircases,
        "edge_plot": edge_plot,
        "anatomy": anatomy,
        "copies": copies,
        "cell_command": cell_command,
        "explain_command": explain_command,
        "status_counts": status_counts,
        "nbytes": figures.nbytes,
    }
    return environment


def moment(stamp: str) -> str:
    """`2026-11-29 17:45 UTC` of an ISO 8601 time; anything else as it stands."""
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    return f"{when:%Y-%m-%d %H:%M}{' UTC' if not when.utcoffset() else f'{when:%z}'}"


def headline(cell: CellView) -> str:
    """A cell's one figure in the matrix: its own step time at the largest bucket that it timed."""
    mine = [x for x in cell.latency() if x.arm == "R" and sound(x)]
    if not mine:
        return ""
    largest = max(mine, key=lambda x: x.bucket)
    unit = figures.TimeUnit.fitting([largest.median_us])
    return f"{unit.text(largest.median_us)} {unit.name} at {largest.bucket}"


@dataclass(frozen=True)
class GateGroup:
    """Gates under one heading: those of one lane, or those that came out the same in every lane."""

    heading: str
    gates: list[GateView]


def gate_groups(cell: CellView, *, counts: bool) -> list[GateGroup]:
    """The cell's counts, or its other gates: what failed first, and what every lane found alike said once."""
    lanes = {
        f"{lane.lane} lane, {lane.dtype}": [g for g in _views(lane) if g.is_count is counts] for lane in cell.lanes
    }
    alike = _alike(list(lanes.values()))
    groups = [GateGroup("every lane", [g for g in next(iter(lanes.values()), []) if g.result in alike])]
    groups += [GateGroup(name, [g for g in gates if g.result not in alike]) for name, gates in lanes.items()]
    sorted_groups = [GateGroup(g.heading, worst_first(g.gates)) for g in groups if g.gates]
    return sorted(sorted_groups, key=lambda g: g.gates[0].tone is not fates.Tone.BAD)


def _views(lane: LaneRecord) -> list[GateView]:
    return [GateView(lane.lane, gate) for gate in lane.gates]


def _alike(lanes: list[list[GateView]]) -> list[GateResult]:
    """Results that every one of two or more lanes holds, evidence included."""
    if len(lanes) < 2:
        return []
    first, *others = lanes
    return [g.result for g in first if all(any(g.result == o.result for o in other) for other in others)]


def evidence_lines(gate: GateView) -> list[tuple[str, str]]:
    """What decided a gate that did not simply pass; the records hold it for all."""
    if gate.tone is fates.Tone.GOOD:
        return []
    pairs = figures.flat(gate.result.evidence)
    left = len(pairs) - _EVIDENCE_LINES
    return pairs if left <= 0 else [*pairs[:_EVIDENCE_LINES], ("…", f"{left} more in the records")]


_PER_BUCKET = ("segments", "regions", "nodes")


def recordings(lane: LaneRecord) -> list[tuple[str, list[str]]]:
    """(bucket, [segments, regions, nodes]) for each recorded bucket, ascending; empty if nothing was recorded."""
    tables = [_mapping(lane.capture.get(name)) for name in _PER_BUCKET]
    buckets = sorted({str(bucket) for table in tables for bucket in table}, key=_natural)
    return [(bucket, [figures.figure(table.get(bucket)) for table in tables]) for bucket in buckets]


def capture_facts(lane: LaneRecord) -> list[tuple[str, str]]:
    """What capture claims beside the table of buckets."""
    return figures.flat({key: value for key, value in lane.capture.items() if key not in _PER_BUCKET})


def other_counters(lane: LaneRecord) -> list[tuple[str, str]]:
    """Counters that no plot of the page shows."""
    return figures.flat({key: value for key, value in lane.counters.items() if key not in ("staircase", "anatomy")})


def _mapping(value: Any) -> Mapping[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else {}


def _natural(bucket: str) -> tuple[int, str]:
    digits = "".join(c for c in bucket if c.isdigit())
    return int(digits or 0), bucket


def latency_tables(cell: CellView) -> list[dict[str, Any]]:
    """For each lane that timed steps: its unit, a row for every bucket and arm, and a strip plot for every bucket."""
    tables = []
    for lane in cell.lanes:
        if not lane.latency:
            continue
        steps = arm_sorted(lane.latency)
        unit = figures.TimeUnit.fitting(x.median_us for x in steps)
        buckets = sorted({x.bucket for x in steps})
        tables.append(
            {
                "lane": lane,
                "unit": unit,
                "rows": [(x, sound(x), _against_eager(x, steps), _floor_share(x, lane)) for x in steps],
                "plots": [
                    (b, strip_plot([x for x in steps if x.bucket == b], unit), _floor_text(lane, b, unit))
                    for b in buckets
                ],
            }
        )
    return tables


def _floor_us(lane: LaneRecord, bucket: int) -> float | None:
    entry = _mapping(_mapping(_mapping(lane.counters.get("floor")).get("per_bucket")).get(str(bucket)))
    floor_us = entry.get("floor_us")
    return float(floor_us) if figures.is_number(floor_us) and floor_us > 0 else None


def _floor_text(lane: LaneRecord, bucket: int, unit: figures.TimeUnit) -> str:
    floor_us = _floor_us(lane, bucket)
    return "" if floor_us is None else f", floor {unit.text(floor_us)} {unit.name}"


def _floor_share(steps: Latency, lane: LaneRecord) -> str:
    """The floor over the median: what share of the measured bandwidth the step reaches."""
    floor_us = _floor_us(lane, steps.bucket)
    whole = floor_us is not None and sound(steps) and steps.median_us > 0
    return f"{100 * floor_us / steps.median_us:.0f} %" if whole and floor_us is not None else figures.ABSENT


def _against_eager(steps: Latency, all_steps: Iterable[Latency]) -> str:
    """Eager's median over this arm's at the same bucket: above one is faster than eager."""
    eager = next((x for x in all_steps if x.arm == "E" and x.bucket == steps.bucket and x.batch == steps.batch), None)
    if eager is None or eager is steps or not (sound(eager) and sound(steps) and steps.median_us > 0):
        return figures.ABSENT
    return f"{eager.median_us / steps.median_us:.2f}×"


def staircases(matrix: Matrix, workload: str) -> dict[str, Any]:
    """One plot a cell of `workload`, all on one scale; empty where nothing was timed."""
    cells = [cell for cell in matrix.of_workload(workload) if cell.latency()]
    steps = [x for cell in cells for x in cell.latency() if sound(x)]
    if not steps:
        return {}
    unit = figures.TimeUnit.fitting(x.median_us for x in steps)
    top_us = max(x.p75_us for x in steps)
    return {
        "unit": unit,
        "buckets": buckets_of(cells),
        "plots": [(c, staircase(c.latency(), _recorded_buckets(c), unit, top_us)) for c in cells],
    }


def _recorded_buckets(cell: CellView) -> set[int]:
    """The row counts that the cell's workload has a recording for."""
    for lane in cell.lanes:
        rows = _mapping(lane.capture.get("buckets")).get(cell.axes["workload"])
        if isinstance(rows, (list, tuple)):
            return {int(row) for row in rows}
    return set()
