"""Growth too slow for any one commit to answer for.

+0.3 % a commit is below every threshold and is 6 % after twenty. History detectors take it for drift of the noise, so
the latest values are held against a pinned release, or against the first ones, and the whole against a trend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from harness.history.changepoints import ALONE, FALSE_ALARM, OF_MEDIANS, Crowd, noise_of
from harness.stats import finite

WINDOW = 5
FEWEST = 2 * WINDOW
P_PINNED = 0.01  # five against five reach 0.004 at best
P_TREND = 0.001


@dataclass(frozen=True)
class Drift:
    """`relative` growth since the reference, the test that saw it and its chance under no growth."""

    relative: float
    test: str
    p_value: float
    reference: float


def drift(values: Sequence[float], budget: float, pinned: Sequence[float] = (), crowd: Crowd = ALONE) -> Drift | None:
    """Growth beyond `budget` (0.03 is 3 %), or None. `values` are in order; `pinned` are those of the pinned release.

    Without `pinned` the first `WINDOW` values are the reference. Below `FEWEST` values nothing can be said: None.
    Raises ValueError for NaN and infinity.
    """
    listed = finite(values, "history value")
    if listed.size < FEWEST:
        return None
    reference = finite(pinned, "pinned value") if len(pinned) else listed[:WINDOW]
    return _against(reference, listed, budget, crowd) or _trend(listed, budget, crowd)


def _against(reference: np.ndarray, listed: np.ndarray, budget: float, crowd: Crowd) -> Drift | None:
    """One-sided Mann-Whitney of the latest values; the shift must clear the noise of two medians too."""
    latest = listed[-WINDOW:]
    level, now = float(np.median(reference)), float(np.median(latest))
    p_value = float(stats.mannwhitneyu(latest, reference, alternative="greater").pvalue)
    noise = max(noise_of(listed.tolist()), crowd.noise * level)
    error = OF_MEDIANS * noise * (1 / len(reference) + 1 / WINDOW) ** 0.5
    if p_value > P_PINNED or now - level <= max(budget * level, crowd.sigmas * error):
        return None
    return Drift(now / level - 1 if level else float("inf"), "pinned", p_value, level)


def _trend(listed: np.ndarray, budget: float, crowd: Crowd) -> Drift | None:
    """Kendall's tau says that it grows, Theil and Sen's slope by how much; of many series one grows by chance."""
    index = np.arange(listed.size)
    p_value = float(stats.kendalltau(index, listed, alternative="greater").pvalue)
    slope, start, *_ = stats.theilslopes(listed, index)
    growth = float(slope) * (listed.size - 1)
    if not p_value < min(P_TREND, FALSE_ALARM / crowd.size) or start <= 0 or growth <= budget * start:
        return None
    return Drift(growth / float(start), "trend", p_value, float(start))
