"""What a history says: which commit made which figure dearer, and what cannot be said.

A gate that alarmed on one fresh outlier was muted within a month. Here one value beyond the noise asks to be measured
again; two in a row, or a step that a detector names, are a regression; and both are told per commit, not per series.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum
from itertools import pairwise, takewhile

import numpy as np

from harness.errors import FAILED, INCOMPLETE, first_exit_code
from harness.history.annotate import Segment, missing_nights, moves, ranges, segments
from harness.history.changepoints import ALONE, FEWEST_SIDE, Crowd, Detector, noise_of, steps
from harness.history.creep import FEWEST as FEWEST_FOR_DRIFT
from harness.history.creep import drift
from harness.history.series import History, Point, Series

#: Values that make the band which a fresh one is held against, and its half width in standard deviations.
BAND, FEWEST_BAND, BAND_SIGMAS = 12, 5, 5.0
CONFIRMED = 2
FEWEST = 2 * FEWEST_SIDE


class Kind(str, Enum):
    REGRESSION = "regression"
    DRIFT = "drift"
    SUSPECT = "suspect"  # one value: measure it again
    NO_FIGURE = "no figure"  # the latest run has none where earlier ones had
    IMPROVEMENT = "improvement"
    CHANGED = "changed environment"
    MACHINE = "same code, other speed"  # a step between nights of one commit: nothing in the code explains it
    KNOWN = "known"  # a regression that the pinned release holds already


EXIT_CODES = {Kind.REGRESSION: FAILED, Kind.DRIFT: FAILED, Kind.SUSPECT: INCOMPLETE, Kind.NO_FIGURE: INCOMPLETE}


@dataclass(frozen=True)
class Limits:
    """Relative changes: of a step, and of all growth since the pinned release. `pinned` is a commit, or its start."""

    step: float = 0.05
    drift: float = 0.03
    pinned: str = ""

    def __post_init__(self) -> None:
        for name in ("step", "drift"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ValueError(f"{name} limit {value}: must lie between 0 and 1, for instance 0.05 for 5 %")


@dataclass(frozen=True)
class Finding:
    kind: Kind
    series: str
    machine: str
    commit: str  # where it begins
    message: str
    relative: float = 0.0


@dataclass(frozen=True)
class Report:
    detector: str
    checked: int
    too_short: int  # series of which drift cannot be judged yet
    untold: int = 0  # series with too few values for any judgement
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def exit_code(self) -> int:
        return first_exit_code(EXIT_CODES.get(finding.kind, 0) for finding in self.findings)

    def of(self, kind: Kind) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind is kind]

    def by_commit(self, kind: Kind) -> list[tuple[str, list[Finding]]]:
        """The commits that `kind` was found at, the one with most series first; the largest change first in each."""
        table: dict[str, list[Finding]] = defaultdict(list)
        for finding in self.of(kind):
            table[finding.commit].append(finding)
        for found in table.values():
            found.sort(key=lambda finding: -abs(finding.relative))
        return sorted(table.items(), key=lambda item: -len(item[1]))


def check(history: History, limits: Limits, detector: Detector, until: date) -> Report:
    """Judge every series; `until` is the last night that there should be."""
    crowds = _crowds(history.series)
    judged = (judge(series, limits, detector, crowds[series.machine]) for series in history.series)
    findings = [finding for found in judged for finding in found]
    noisy = [len(_latest(series).values) for series in history.series if not series.exact]
    single = [len(_latest(series).values) < CONFIRMED for series in history.series if series.exact]
    short, untold = sum(count < FEWEST_FOR_DRIFT for count in noisy), sum(count < FEWEST for count in noisy)
    notes = [f"not read: {what}" for what in history.unreadable]
    notes += moves(history.series)
    if missing := missing_nights(history.starts, until):
        notes.append(f"nights without a run: {len(missing)} ({ranges(missing)})")
    return Report(detector.name, len(history.series), short, untold + sum(single), tuple(findings), tuple(notes))


def _crowds(all_series: Sequence[Series]) -> dict[str, Crowd]:
    """What the noisy series of each machine say together, of their latest environment."""
    values: dict[str, list[list[float]]] = {series.machine: [] for series in all_series}
    for series in all_series:
        if not series.exact and len(latest := _latest(series).values) >= FEWEST:
            values[series.machine].append(latest)
    return {machine: Crowd.of(found) for machine, found in values.items()}


def judge(series: Series, limits: Limits, detector: Detector, crowd: Crowd = ALONE) -> list[Finding]:
    """The findings of one series: of the latest environment, and of each change of environment before it.

    `crowd` says with how many others it is judged, and how noisy they are.
    """
    cut = segments(series)
    found = [_border(series, before, after) for before, after in pairwise(cut)]
    had = sum(point.value is not None for point in series.points)
    if had and series.points[-1].value is None:
        text = f"the latest run has no figure, where {had} earlier ones had one"
        found.append(_finding(Kind.NO_FIGURE, series, series.points[-1], text))
    if cut and series.exact:
        found += _exact(series, cut[-1], limits)
    elif cut:
        found += _noisy(series, cut[-1], limits, detector, crowd)
    return found


def _latest(series: Series) -> Segment:
    return next(iter(reversed(segments(series))), Segment(()))


def _finding(kind: Kind, series: Series, at: Point, message: str, relative: float = 0.0) -> Finding:
    return Finding(kind, series.name, series.machine, at.commit, message, relative)


def _border(series: Series, before: Segment, after: Segment) -> Finding:
    last, first = float(np.median(before.values[-BAND:])), float(np.median(after.values[:BAND]))
    text = f"{after.change}; {_change(last, first, series.unit)} there, which is not judged"
    return _finding(Kind.CHANGED, series, after.points[0], text, _relative(last, first))


def _exact(series: Series, segment: Segment, limits: Limits) -> list[Finding]:
    """A count has no noise: each change is one, and needs no second look."""
    found = []
    for index in range(1, len(segment.points)):
        before, after = segment.values[index - 1], segment.values[index]
        if before != after:
            found.append(_step(series, segment, index, before, after, limits))
    return found


def _noisy(series: Series, segment: Segment, limits: Limits, detector: Detector, crowd: Crowd) -> list[Finding]:
    """Steps, fresh values and drift. Where the machine changed its speed, what follows is judged by itself."""
    found = _steps_and_fresh(series, segment, limits, detector, crowd)
    moved = [index for index, finding in found if finding.kind is Kind.MACHINE]
    if moved:
        kept = [finding for index, finding in found if index <= moved[-1]]
        return kept + _noisy(series, Segment(segment.points[moved[-1] :]), limits, detector, crowd)
    if not any(finding.kind is Kind.REGRESSION for _, finding in found):
        return [finding for _, finding in found] + _drift(series, segment, limits, crowd)
    return [finding for _, finding in found]


def _steps_and_fresh(
    series: Series, segment: Segment, limits: Limits, detector: Detector, crowd: Crowd
) -> list[tuple[int, Finding]]:
    """Each with the index of the first value that it speaks of."""
    found = [
        (step.index, _step(series, segment, step.index, step.before, step.after, limits, step.values_after))
        for step in steps(segment.values, detector, limits.step, crowd)
    ]
    if not any(finding.kind in (Kind.REGRESSION, Kind.SUSPECT) for _, finding in found):
        found += _fresh(series, segment, limits, crowd)
    return [(index, _told_apart(finding, segment, index)) for index, finding in found]


def _told_apart(finding: Finding, segment: Segment, index: int) -> Finding:
    """The machine's own step, if the commit at `index` was measured before it, as often as confirms a value."""
    if finding.kind not in (Kind.REGRESSION, Kind.SUSPECT, Kind.IMPROVEMENT):
        return finding
    commit = segment.points[index].commit
    nights = len(list(takewhile(lambda point: point.commit == commit, reversed(segment.points[:index]))))
    if nights < CONFIRMED:
        return finding
    text = f"{finding.message}; the same commit gave the earlier value in {nights} runs, so the machine changed"
    return replace(finding, kind=Kind.MACHINE, message=text)


def _step(
    series: Series,
    segment: Segment,
    index: int,
    before: float,
    after: float,
    limits: Limits,
    values_after: int = CONFIRMED,
) -> Finding:
    kind = Kind.IMPROVEMENT if after < before else Kind.REGRESSION
    if kind is Kind.REGRESSION and values_after < CONFIRMED and index + values_after == len(segment.values):
        kind = Kind.SUSPECT
    if kind is Kind.REGRESSION and index <= _pinned_index(segment, limits.pinned):
        kind = Kind.KNOWN
    text = _change(before, after, series.unit)
    return _finding(kind, series, segment.points[index], text, _relative(before, after))


def _fresh(series: Series, segment: Segment, limits: Limits, crowd: Crowd) -> list[tuple[int, Finding]]:
    """The latest values, as long as each is above the band of those before them all."""
    values = segment.values
    for count in range(min(CONFIRMED + 1, len(values)), 0, -1):
        before, latest = values[-count - BAND : -count], values[-count:]
        if len(before) >= FEWEST_BAND and min(latest) > _top(before, limits.step, crowd):
            kind = Kind.REGRESSION if count >= CONFIRMED else Kind.SUSPECT
            level, now = float(np.median(before)), float(np.median(latest))
            text = f"{_change(level, now, series.unit)} in the latest {count if count > 1 else 'value'}"
            return [(len(values) - count, _finding(kind, series, segment.points[-count], text, _relative(level, now)))]
    return []


def _top(before: Sequence[float], limit: float, crowd: Crowd) -> float:
    level = float(np.median(before))
    # Few values understate their own spread, so the band is the widest of three estimates.
    spread = max(noise_of(before), float(np.std(before, ddof=1)), crowd.noise * level)
    return level + max(limit * level, BAND_SIGMAS * spread)


def _drift(series: Series, segment: Segment, limits: Limits, crowd: Crowd) -> list[Finding]:
    pin = _pinned_index(segment, limits.pinned)
    pinned = [point.value for point in segment.points if _is(point, limits.pinned) and point.value is not None]
    values = segment.values[max(pin, 0) :]
    grown = drift(values, limits.drift, pinned, crowd)
    if grown is None:
        return []
    since = f"the pinned {limits.pinned[:12]}" if pinned else f"{segment.points[max(pin, 0)].commit[:12]}"
    text = f"{100 * grown.relative:+.1f} % since {since} ({grown.test} test, p {grown.p_value:.2g}), a little a commit"
    one_commit = len({point.commit for point in segment.points[max(pin, 0) :]}) == 1
    kind = Kind.MACHINE if one_commit else Kind.DRIFT
    return [_finding(kind, series, segment.points[max(pin, 0)], text, grown.relative)]


def _pinned_index(segment: Segment, pinned: str) -> int:
    """The last point of the pinned commit; -1 without one in this segment."""
    return max((index for index, point in enumerate(segment.points) if _is(point, pinned)), default=-1)


def _is(point: Point, pinned: str) -> bool:
    return bool(pinned) and point.commit.startswith(pinned)


def _change(before: float, after: float, unit: str) -> str:
    share = _relative(before, after)
    told = f"{100 * share:+.1f} %" if math.isfinite(share) else "from nothing"
    return f"{told} ({before:g} -> {after:g}{f' {unit}' if unit else ''})"


def _relative(before: float, after: float) -> float:
    return after / before - 1 if before else math.inf if after else 0.0


def lines(report: Report, shown: int = 5) -> Iterable[str]:
    """The report as text: a head, then one paragraph for each kind and commit."""
    yield (
        f"{report.checked} series checked with {report.detector} change points and the pinned/trend drift test; "
        f"{report.too_short} are too short for drift ({FEWEST_FOR_DRIFT} values), {report.untold} for any judgement"
    )
    yield from report.notes
    for kind in Kind:
        for commit, found in report.by_commit(kind):
            yield f"{kind.value.upper()} at {commit[:12]}: {len(found)} series"
            yield from (f"    {finding.series}: {finding.message}" for finding in found[:shown])
            if len(found) > shown:
                yield f"    and {len(found) - shown} more"
    if not report.exit_code:
        yield "nothing got dearer" + (f" in the {report.checked - report.untold} series that can be judged")
