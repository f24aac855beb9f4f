"""Plots of what lies between and within the buckets: step time at every edge, and the parts of a step.

A table of full buckets shows no batch that is padded, and a step's time shows none of its parts: both hid faults.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from harness.report.figures import ABSENT, TimeUnit, figure, is_number
from harness.report.svg import Axis, axis_ticks, grid, px, row_ticks, svg
from harness.report.view import CellView

PARTS = ("dispatch", "staging", "launch", "replay", "gaps", "regions", "output")
#: Kinds of copies whose time a profile tells apart from the work around them.
PROFILED_COPIES = ("staging", "handoff")
PART_MEANINGS = {
    "dispatch": "the host before the first launch",
    "staging": "copies into the step's inputs",
    "launch": "the host within graph launches",
    "replay": "recorded work",
    "gaps": "idle between pieces of recorded work",
    "regions": "eager work between launches, hand-offs included",
    "output": "after the last recorded work: logits and copies out",
}


def edge_plot(cell: CellView) -> dict[str, Any]:
    """Step time of arm R at every measured batch size, with what pad rows take of it; empty if none was measured."""
    rows = [row for lane in cell.lanes for row in _rows(lane.counters.get("staircase"))]
    if not rows:
        return {}
    unit = TimeUnit.fitting(row["median_us"] for row in rows)
    return {"unit": unit, "plot": _edges(rows, unit), "rows": rows}


def _rows(found: Any) -> list[dict[str, Any]]:
    """Whole rows alone: a record may come from elsewhere."""
    names = ("batch", "median_us", "p25_us", "p75_us", "pad_share")
    listed = found if isinstance(found, list) else []
    return [dict(row) for row in listed if isinstance(row, Mapping) and all(is_number(row.get(name)) for name in names)]


def _edges(rows: Sequence[Mapping[str, Any]], unit: TimeUnit) -> Markup:
    width, height = 320, 190
    x_axis = Axis(0, max(row["batch"] for row in rows) + 0.6, 40, width - 8)
    y_axis = Axis(0, max(row["p75_us"] for row in rows) * 1.06, height - 26, 8)
    parts = [svg(width, height, "Step time against batch size, with what pad rows take of it")]
    parts.append(grid(f"M40 {px(y_axis.at(us))}H{width - 8}" for us, _ in axis_ticks(y_axis, unit)))
    parts += [
        f'<text class="left" x="34" y="{px(y_axis.at(us) + 4)}">{text}</text>' for us, text in axis_ticks(y_axis, unit)
    ]
    parts += row_ticks([row["batch"] for row in rows], x_axis, height)
    half = min(14.0, max(3.0, (x_axis.at(1) - x_axis.at(0)) * 0.36))
    for kind, drawn in (
        ("R", [row for row in rows if row.get("bucket")]),
        ("E", [r for r in rows if not r.get("bucket")]),
    ):
        parts.append(_columns(kind, drawn, x_axis, y_axis, half))
    return Markup("".join([*parts, "</svg>"]))


def _columns(kind: str, rows: Sequence[Mapping[str, Any]], x_axis: Axis, y_axis: Axis, half: float) -> str:
    """A column to each median: what live rows would take in full ink, pad rows' part faint; quartiles as a stroke."""
    live, padding, spread = "", "", ""
    bottom = px(y_axis.at(0))
    for row in rows:
        x, left, right = x_axis.at(row["batch"]), px(x_axis.at(row["batch"]) - half), px(x_axis.at(row["batch"]) + half)
        top, line = px(y_axis.at(row["median_us"])), px(y_axis.at(row["median_us"] * (1 - row["pad_share"])))
        live += f"M{left} {line}H{right}V{bottom}H{left}z"
        padding += f"M{left} {top}H{right}V{line}H{left}z" if row["pad_share"] else ""
        spread += f"M{px(x)} {px(y_axis.at(row['p25_us']))}V{px(y_axis.at(row['p75_us']))}"
    return (
        f'<g class="arm-{kind}"><path class="column" d="{live}"/><path class="padding" d="{padding}"/>'
        f'<path class="line" d="{spread}"/></g>'
    )


def anatomy(cell: CellView) -> dict[str, Any]:
    """The parts of one profiled step of each bucket; empty if no step was taken apart."""
    tables = [lane.counters["anatomy"] for lane in cell.lanes if isinstance(lane.counters.get("anatomy"), Mapping)]
    bars = [
        (str(bucket), figures, str(parts.get("clock", "")))
        for table in tables
        for bucket, parts in table.items()
        if isinstance(parts, Mapping) and (figures := _figures(parts))
    ]
    if not bars:
        return {}
    unit = TimeUnit.fitting(max(figures.values()) for _, figures, _ in bars)
    shown = [name for name in PARTS if any(figures.get(name) for _, figures, _ in bars)]
    return {
        "unit": unit,
        "clock": bars[0][2],
        "shown": shown,
        "plot": _bars([(bucket, figures) for bucket, figures, _ in bars], unit),
        "rows": [(bucket, [unit.text(figures.get(name, 0.0)) for name in shown]) for bucket, figures, _ in bars],
    }


def _figures(parts: Mapping[str, Any]) -> dict[str, float]:
    named = {name: parts.get(f"{name}_us") for name in PARTS}
    return {name: us for name, us in named.items() if is_number(us) and us > 0}


def _bars(bars: Sequence[tuple[str, Mapping[str, float]]], unit: TimeUnit) -> Markup:
    width, row, left = 320, 26, 34
    total = max(math.fsum(figures.values()) for _, figures in bars)
    axis = Axis(0, total * 1.02, left, width - 8)
    bottom = row * len(bars) + 4
    parts = [svg(width, bottom + 18, "Parts of one profiled step of each bucket")]
    parts.append(grid(f"M{px(axis.at(us))} 2V{bottom}" for us, _ in axis_ticks(axis, unit)))
    parts += [f'<text x="{px(axis.at(us))}" y="{bottom + 13}">{text}</text>' for us, text in axis_ticks(axis, unit)]
    for line, (bucket, figures) in enumerate(bars):
        parts += _bar(bucket, figures, axis, line * row + 6, row - 8, unit)
    return Markup("".join([*parts, "</svg>"]))


def _bar(
    bucket: str, figures: Mapping[str, float], axis: Axis, top: float, height: float, unit: TimeUnit
) -> Iterable[str]:
    yield f'<text class="left" x="28" y="{px(top + height / 2 + 4)}">{escape(bucket)}</text>'
    at = 0.0
    for name in PARTS:
        if us := figures.get(name, 0.0):
            x, end = axis.at(at), axis.at(at + us)
            right = px(max(end, x + 0.5))
            yield f'<path class="part-{name}" d="M{px(x)} {px(top)}H{right}v{px(height)}H{px(x)}z"/>'
            at += us


def copies(cell: CellView) -> list[list[str]]:
    """For every bucket and kind of copy: count, bytes, the least time that these bytes take, and what a profile saw."""
    return [row for lane in cell.lanes for row in _copies_of(lane.counters)]


def _copies_of(counters: Mapping[str, Any]) -> Iterable[list[str]]:
    floor, profiled = counters.get("floor") or {}, counters.get("anatomy") or {}
    speed = floor.get("bandwidth_bytes_s") if isinstance(floor, Mapping) else None
    buckets = counters.get("per_bucket")
    for bucket, costs in buckets.items() if isinstance(buckets, Mapping) else ():
        parts = profiled.get(str(bucket)) if isinstance(profiled, Mapping) else None
        for kind, copy in (costs.get("copies") or {}).items():
            if copy.get("count"):
                least_us = 2e6 * copy["bytes"] / speed if is_number(speed) and speed > 0 else None
                seen_us = parts.get(f"{kind}_us") if isinstance(parts, Mapping) and kind in PROFILED_COPIES else None
                times = (_us(least_us), _us(seen_us))
                yield [str(bucket), str(kind), figure(copy["count"]), figure(copy["bytes"]), *times]


def _us(time_us: object) -> str:
    return f"{time_us:.2f}" if is_number(time_us) else ABSENT
