"""What changed around a series: another torch, driver or machine, and the nights that are not there.

A driver update on the night of a merge was reverted as a regression of the merge. A change of environment ends one
segment and begins the next; levels are compared within a segment alone, and the step at its border is told as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from harness.history.series import Point, Series

SHOWN = 4


@dataclass(frozen=True)
class Segment:
    """Points of one environment, in order, that have a value. `change` says how the environment before differed."""

    points: tuple[Point, ...]
    change: str = ""

    @property
    def values(self) -> list[float]:
        return [point.value for point in self.points if point.value is not None]


def segments(series: Series) -> list[Segment]:
    """The series cut at each change of environment; points without a value are in none."""
    cut: list[tuple[list[Point], str]] = []
    for point in series.points:
        if point.value is None:
            continue
        if not cut:
            cut.append(([point], ""))
        elif change := difference(cut[-1][0][-1].environment, point.environment):
            cut.append(([point], change))
        else:
            cut[-1][0].append(point)
    return [Segment(tuple(points), change) for points, change in cut]


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """`software.torch 2.11.0 -> 2.13.0; ...`, or "" when the two are equal."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    told = [f"{name} {before.get(name, '(absent)')} -> {after.get(name, '(absent)')}" for name in names[:SHOWN]]
    return "; ".join(told) + (f"; and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def moves(all_series: Iterable[Series]) -> list[str]:
    """Where the nights moved from one machine to another: one sentence each; nothing for a single machine.

    Each machine has series of its own, so that nothing is judged across a move, and nothing would say that it happened.
    """
    nights: dict[str, set[date]] = {}
    for series in all_series:
        days = (point.started.date() for point in series.points if point.value is not None)
        nights.setdefault(series.machine, set()).update(days)
    known = sorted((min(days), max(days), machine) for machine, days in nights.items() if days)
    if len(known) < 2:
        return []
    return [
        f"machine {machine}: nights from {first} to {last}; levels of two machines are not compared"
        for first, last, machine in known
    ]


def missing_nights(starts: Iterable[datetime], until: date) -> list[date]:
    """The days, from the first start to `until`, on which nothing was started."""
    days = {start.date() for start in starts}
    if not days:
        return []
    first = min(days)
    return [day for day in (first + timedelta(n) for n in range((until - first).days + 1)) if day not in days]


def ranges(days: Sequence[date]) -> str:
    """`2026-11-02 to 2026-11-05, 2026-11-09`."""
    runs: list[list[date]] = []
    for day in days:
        if runs and day - runs[-1][-1] == timedelta(1):
            runs[-1].append(day)
        else:
            runs.append([day])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
