"""One item's paired log-ratios against its budget: the interval, the chance of each error, the smallest effect it sees.

"No significant difference" over five noisy runs was read as "no regression". A verdict here says which effect it would
have found, and one that cannot tell says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from harness.stats import finite

POWER = 0.8  # the chance of a FAIL at the minimum detectable effect


@dataclass(frozen=True)
class Budget:
    """The relative change of step time that is allowed in each direction: 0.02 is 2 %."""

    change: float

    def __post_init__(self) -> None:
        if not 0 < self.change < 1:
            raise ValueError(f"budget {self.change}: must lie between 0 and 1, for instance 0.02 for 2 %")

    @property
    def log(self) -> float:
        return math.log1p(self.change)


@dataclass(frozen=True)
class Estimate:
    """What `pairs` pair means of the log-ratio (candidate over baseline) say at one look; all figures are logarithms.

    `p_slower` is the chance of so slow a sample if the truth is at the upper budget or below, `p_faster` the same for
    the lower one. `detectable` is the true change that would have become a FAIL with `POWER`.
    """

    pairs: int
    mean: float
    low: float
    high: float
    p_slower: float
    p_faster: float
    detectable: float

    @property
    def change(self) -> float:
        """The relative change: 0.05 is 5 % slower."""
        return math.expm1(self.mean)

    def __str__(self) -> str:
        low, mean, high = (f"{100 * math.expm1(x):+.2f}" for x in (self.low, self.mean, self.high))
        seen = 100 * math.expm1(self.detectable)
        return f"{mean} % [{low}, {high}] over {self.pairs} pairs, would find {seen:+.2f} %"


def estimate(pair_means: Sequence[float], budget: Budget, look_alpha: float) -> Estimate:
    """Student's interval over pair means, `look_alpha` on each side. Raises ValueError below two finite pairs."""
    values = finite(pair_means, "pair mean")
    if values.size < 2:
        raise ValueError("one pair has no spread; an interval needs at least two pairs")
    freedom = values.size - 1
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    reach = float(stdtrit(freedom, 1 - look_alpha))
    return Estimate(
        pairs=int(values.size),
        mean=mean,
        low=mean - reach * error,
        high=mean + reach * error,
        p_slower=_tail(mean - budget.log, error, freedom),
        p_faster=_tail(-budget.log - mean, error, freedom),
        detectable=budget.log + (reach + float(stdtrit(freedom, POWER))) * error,
    )


def _tail(distance: float, error: float, freedom: int) -> float:
    """The chance that Student's t exceeds `distance` in units of `error`. Pairs without any spread are certain."""
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(stdtr(freedom, -distance / error))
