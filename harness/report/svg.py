"""Plots as inline SVG: no script, no network, readable in print and in either colour scheme.

A median alone hides a step that takes two values, one with and one without its graph. So each sample is a dot, in the
order in which it was taken, so that drift and two-valued steps are seen and not averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from harness.records import Latency
from harness.report.figures import TimeUnit
from harness.report.view import sound

ARM_NAMES = {"E": "eager", "C": "compiled, no graph", "R": "as the cell asks", "REF": "float64 reference"}
ARM_ORDER = {"E": 0, "C": 1, "R": 2, "REF": 3}
#: A sample further than this many quartile ranges above its arm's upper quartile is drawn at the edge and counted.
_FAR = 8.0


@dataclass(frozen=True)
class Axis:
    """A linear map from `[low, high]` to pixels `[start, end]`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (min(max(value, self.low), self.high) - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most `most` round values within `[low, high]`."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low] if math.isfinite(low) else []
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10, 20) if span / (power * m) <= most - 1 or m == 20)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, first + most + 1) if n * step <= high + step * 1e-9]


def axis_ticks(axis: Axis, unit: TimeUnit, most: int = 5) -> list[tuple[float, str]]:
    """Round times on an axis of microseconds: (microseconds, label in `unit`)."""
    return [(tick / unit.per_us, f"{tick:g}") for tick in ticks(axis.low * unit.per_us, axis.high * unit.per_us, most)]


def arm_sorted(steps: Iterable[Latency]) -> list[Latency]:
    return sorted(steps, key=lambda x: (x.bucket, x.batch, ARM_ORDER.get(x.arm, len(ARM_ORDER)), x.arm))


def strip_plot(steps: Sequence[Latency], unit: TimeUnit) -> Markup:
    """One bucket's arms, one below the other: every sample a dot, first on top, over median and quartiles."""
    drawn = [x for x in arm_sorted(steps) if sound(x)]
    if not drawn:
        return Markup('<p class="bad">No sample was taken.</p>')
    width, row, left, right = 320, 34, 26, 206
    axis = _time_axis(drawn, left, right)
    bottom = row * len(drawn) + 4
    parts = [svg(width, bottom + 18, f"Step times at bucket {drawn[0].bucket}, one dot a step")]
    at = [
        (axis.at(tick / unit.per_us), f"{tick:g}") for tick in ticks(axis.low * unit.per_us, axis.high * unit.per_us, 4)
    ]
    parts.append(grid(f"M{px(x)} 2V{bottom}" for x, _ in at))
    parts += [f'<text x="{px(x)}" y="{bottom + 13}">{text}</text>' for x, text in at]
    for line, arm in enumerate(drawn):
        parts.append(_strip(arm, axis, unit, top=line * row + 4, height=row - 8))
    return Markup("".join([*parts, "</svg>"]))  # numbers and escaped names only


def _time_axis(drawn: Sequence[Latency], left: float, right: float) -> Axis:
    low = min(min(x.samples_us) for x in drawn)
    high = max(us for x in drawn for us in x.samples_us if us <= _far(x))
    margin = max((high - low) * 0.06, high * 0.002)
    return Axis(max(low - margin, 0.0), high + margin, left, right)


def _far(steps: Latency) -> float:
    """Beyond this a single stalled step would squeeze all the others into one line."""
    return steps.p75_us + _FAR * max(steps.p75_us - steps.p25_us, 0.01 * steps.median_us)


def _strip(steps: Latency, axis: Axis, unit: TimeUnit, top: float, height: float) -> str:
    middle = top + height / 2
    gap = height / max(len(steps.samples_us) - 1, 1)
    near = [(axis.at(us), top + i * gap) for i, us in enumerate(steps.samples_us) if us <= axis.high]
    dots = _dots([(round(x), round(y)) for x, y in near])  # a dot is wider than a pixel
    far = len(steps.samples_us) - len(near)
    low, high, median = axis.at(steps.p25_us), axis.at(steps.p75_us), axis.at(steps.median_us)
    spread = unit.spread(steps.median_us, steps.p25_us, steps.p75_us)
    beyond = f"<title>{far} slower, up to {unit.text(max(steps.samples_us))} {unit.name}</title>"
    mark = f'<text class="far" x="{axis.end + 6}" y="{px(middle + 4)}">▸{beyond}</text>' if far else ""
    return (
        f'<g class="arm-{escape(steps.arm)}"><text class="name" x="4" y="{px(middle + 4)}">{escape(steps.arm)}</text>'
        f'<path class="band" d="M{px(low)} {px(top)}H{px(max(high, low + 1))}V{px(top + height)}H{px(low)}z"/>'
        f'<path class="dots" d="{dots}"/>'
        f'<path class="median" d="M{px(median)} {px(top - 2)}V{px(top + height + 2)}"/>{mark}'
        f'<text class="value" x="{axis.end + 14}" y="{px(middle + 4)}">{spread}</text></g>'
    )


def _dots(at: Sequence[tuple[int, int]]) -> str:
    """A path of dots, each from the one before: a page holds thousands."""
    before = [(0, 0), *at]
    return "".join(f"m{x - left} {y - top}h0" for (x, y), (left, top) in zip(at, before, strict=False))


def staircase(steps: Sequence[Latency], buckets: Iterable[int], unit: TimeUnit, top_us: float) -> Markup:
    """Step time against live rows. `buckets` were recorded: every row count up to one costs what that bucket costs."""
    drawn = [x for x in arm_sorted(steps) if sound(x) and x.arm in ARM_ORDER]
    if not drawn:
        return Markup('<p class="bad">No sample was taken.</p>')
    recorded = set(buckets)
    width, height = 320, 176
    x_axis = Axis(0, max(_rows(x) for x in drawn) * 1.02, 40, width - 30)
    y_axis = Axis(0, top_us * 1.06, height - 26, 8)
    parts = [svg(width, height, "Step time against live rows")]
    at = [(y_axis.at(tick / unit.per_us), f"{tick:g}") for tick in ticks(0, y_axis.high * unit.per_us, 5)]
    parts.append(grid(f"M40 {px(y)}H{width - 30}" for y, _ in at))
    parts += [f'<text class="left" x="34" y="{px(y + 4)}">{text}</text>' for y, text in at]
    parts += row_ticks(sorted({_rows(x) for x in drawn}), x_axis, height)
    ends: list[tuple[float, str]] = []
    for arm in sorted({x.arm for x in drawn}, key=lambda name: ARM_ORDER[name]):
        series = sorted((x for x in drawn if x.arm == arm), key=_rows)
        parts.append(_series(arm, series, recorded if arm == "R" else set(), x_axis, y_axis))
        ends.append((y_axis.at(series[-1].median_us), arm))
    return Markup("".join([*parts, *_end_labels(ends, width - 24), "</svg>"]))


def _rows(steps: Latency) -> int:
    """Live rows: a decode step has one a request; a prefill step fills its bucket with tokens."""
    return steps.batch if steps.phase == "decode" else steps.bucket


def row_ticks(rows: list[int], axis: Axis, height: int) -> list[str]:
    """A label at each measured row count, from the largest down, leaving out what would overlap."""
    parts: list[str] = []
    last = math.inf
    for count in reversed(rows):
        x = axis.at(count)
        if last - x >= 22:
            parts.append(f'<text x="{px(x)}" y="{height - 10}">{count}</text>')
            last = x
    return parts


def _series(arm: str, series: Sequence[Latency], recorded: set[int], x_axis: Axis, y_axis: Axis) -> str:
    line, band, dots = "", "", ""
    before, before_rows = "M", 0.0
    for x in series:
        here, y = x_axis.at(_rows(x)), y_axis.at(x.median_us)
        if x.bucket in recorded:
            start = x_axis.at(before_rows)
            line += f"M{px(start)} {px(y)}H{px(here)}"
            band += f"M{px(start)} {px(y_axis.at(x.p75_us))}H{px(here)}V{px(y_axis.at(x.p25_us))}H{px(start)}z"
            before = "M"
        else:
            line += f"{before}{px(here)} {px(y)}"
            before = "L"
        dots += f"M{px(here)} {px(y)}h0"
        before_rows = _rows(x)
    return (
        f'<g class="arm-{escape(arm)}"><path class="band" d="{band}"/><path class="line" d="{line}"/>'
        f'<path class="knots" d="{dots}"/></g>'
    )


def _end_labels(ends: list[tuple[float, str]], x: float) -> list[str]:
    """Arm letters at their lines' ends, pushed apart where the lines meet."""
    parts: list[str] = []
    last = -math.inf
    for y, arm in sorted(ends):
        last = max(y, last + 12)
        parts.append(f'<text class="end arm-{escape(arm)}" x="{x}" y="{px(last + 4)}">{escape(arm)}</text>')
    return parts


def px(pixels: float) -> str:
    """To a tenth of a pixel and without a trailing zero: a page holds thousands of them."""
    return f"{pixels:.1f}".removesuffix(".0")


def grid(lines: Iterable[str]) -> str:
    return f'<path class="grid" d="{"".join(lines)}"/>'


def svg(width: int, height: int, label: str) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">'
