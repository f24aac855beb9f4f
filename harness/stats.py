"""Quantiles and exact binomial bounds, glued to scipy and numpy.

A mean over samples that held a NaN was once published as a measurement. Every helper here refuses an empty or
non-finite sample instead of passing it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Quartiles(NamedTuple):
    """In the unit of the samples."""

    p25: float
    median: float
    p75: float


def finite(samples: Sequence[float], what: str = "sample") -> np.ndarray:
    """The samples as float64. Raises ValueError when there are none or one is NaN or infinite."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError(f"no {what}: an empty measurement is not a measurement; take at least one")
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise ValueError(f"{bad} of {values.size} values of {what} are NaN or infinite; measure again, never drop them")
    return values


def percentile(samples: Sequence[float], percent: float, what: str = "sample") -> float:
    """Linear interpolation between order statistics, as numpy does it. `percent` lies in 0 .. 100."""
    return float(np.percentile(finite(samples, what), percent))


def quartiles(samples: Sequence[float], what: str = "sample") -> Quartiles:
    p25, median, p75 = np.percentile(finite(samples, what), [25, 50, 75])
    return Quartiles(float(p25), float(median), float(p75))


def binomial_upper_bound(bad: int, trials: int, confidence: float = 0.95) -> float:
    """The exact (Clopper-Pearson) one-sided upper bound of a failure rate: 0 bad of 60 is below 5 % at 95 %."""
    if trials < 1 or not 0 <= bad <= trials:
        raise ValueError(f"{bad} bad of {trials} trials: needs at least one trial and 0 <= bad <= trials")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: must lie between 0 and 1, for instance 0.95")
    bound = stats.binomtest(bad, trials, alternative="less").proportion_ci(confidence, method="exact").high
    return float(bound)


def clean_trials_needed(rate: float, confidence: float = 0.95) -> int:
    """How many trials without a failure bound the failure rate below `rate`."""
    if not 0 < rate < 1:
        raise ValueError(f"rate {rate}: must lie between 0 and 1, for instance 0.05")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: must lie between 0 and 1, for instance 0.95")
    return int(np.ceil(np.log1p(-confidence) / np.log1p(-rate)))


class Rate(NamedTuple):
    """`hits` of `trials`, with the exact (Clopper-Pearson) two-sided bounds of the true rate."""

    hits: int
    trials: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.hits} of {self.trials} (95 % bounds {100 * self.low:.1f} to {100 * self.high:.1f} %)"


def exact_rate(hits: int, trials: int, confidence: float = 0.95) -> Rate:
    """Bounds that are one-sided where every trial or none hit, so that 0 of 60 is the bound that people quote."""
    if trials < 1 or not 0 <= hits <= trials:
        raise ValueError(f"{hits} of {trials} trials: needs at least one trial and 0 <= hits <= trials")
    if hits == 0:
        return Rate(0, trials, 0.0, binomial_upper_bound(0, trials, confidence))
    if hits == trials:
        return Rate(hits, trials, 1 - binomial_upper_bound(0, trials, confidence), 1.0)
    bounds = stats.binomtest(hits, trials).proportion_ci(confidence, method="exact")
    return Rate(hits, trials, float(bounds.low), float(bounds.high))
