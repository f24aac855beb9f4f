"""Series with seeded noise, and what the history check says of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from harness.history.changepoints import choose_detector
from harness.history.check import Kind, Limits, judge
from harness.history.series import History, Point, Series

FIRST_NIGHT = datetime(2026, 11, 1, 2, tzinfo=UTC)
ASV = choose_detector("asv")
LIMITS = Limits()


def series(
    values: Sequence[float | None],
    *,
    exact: bool = False,
    environments: Sequence[str] = (),
    commits: Sequence[int] = (),
) -> Series:
    """One commit a night: c000, c001, ..., or the numbers in `commits`."""
    points = []
    for night, value in enumerate(values):
        started = FIRST_NIGHT + timedelta(days=night)
        torch = environments[night] if environments else "2.13.0"
        commit = commits[night] if commits else night
        points.append(Point(f"c{commit:03}", started, value, {"software.torch": torch}, (night, night)))
    return Series("decode_latency_us", "us", "machine", tuple(points), exact)


def noisy(levels: Sequence[float], seed: int, spread: float = 0.01) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, spread)) for level in levels]


def history(*all_series: Series) -> History:
    starts = [point.started for one in all_series for point in one.points]
    return History(all_series, tuple(starts))


def judged(values: Sequence[float | None], limits: Limits = LIMITS, **more: Any) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.commit) for finding in judge(series(values, **more), limits, ASV)]
