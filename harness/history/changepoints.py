"""Where a series steps from one level to another.

asv's detector let +46 % over twenty commits pass, and never ends on an infinity; e-divisive is the best that was
measured, and its package pins numpy. So e-divisive is used where apache-otava is installed, asv's otherwise, and the
name of the one that was used is part of every report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
from scipy import stats

from harness.errors import UsageError
from harness.stats import finite

#: A point of change needs two values on each side; one value alone is an outlier until it has been measured again.
FEWEST_SIDE = 2
P_VALUE = 0.001
#: A level must differ by this many standard errors of its difference, whatever the detector says.
NOISE_FACTOR = 3.0
FEWEST_CROWD = 8

#: Detectors need more than this to see 10 % through 1 % of noise; a branch of six commits is judged by its best split.
SHORT = 12
#: Simulated for 4 to 12 values: below 0.4 % false alarms a series at 3 % of noise, 98 % power for 10 % at 1 %.
P_SHORT = 0.003

#: The chance a night that noise alone steps in any of the series that are looked at together.
FALSE_ALARM = 0.01
#: A median's standard error is 1.25 times a mean's.
OF_MEDIANS = 1.25

Finder = Callable[[list[float]], list[int]]


@dataclass(frozen=True)
class Detector:
    """`find` gives the first index of every new level."""

    name: str
    find: Finder


@dataclass(frozen=True)
class Step:
    """A step at `index`, from the median level `before` to `after`, each over the values up to the next step."""

    index: int
    before: float
    after: float
    values_after: int

    @property
    def relative(self) -> float:
        return self.after / self.before - 1 if self.before else float("inf")


@dataclass(frozen=True)
class Crowd:
    """The noisy series of one machine that are judged together: how many, and the noise of one of their values.

    At 3 % of noise, 300 series of identical code raised one false regression a night: each test was right on its own.
    And a handful of values does not know its own noise, where three hundred series do.
    """

    size: int = 1
    noise: float = 0.0  # relative to the level

    @classmethod
    def of(cls, all_values: Sequence[Sequence[float]]) -> Crowd:
        """`noise` is the median over the series; a few series say nothing that each does not know itself."""
        known = [
            noise_of(values) / float(np.median(values)) for values in all_values if len(values) > 2 and min(values) > 0
        ]
        return cls(max(1, len(all_values)), float(np.median(known)) if len(known) >= FEWEST_CROWD else 0.0)

    @property
    def sigmas(self) -> float:
        """Standard errors that a change must clear, for noise to pass all series of a night."""
        return max(NOISE_FACTOR, float(stats.norm.isf(FALSE_ALARM / (2 * self.size))))


ALONE = Crowd()


def choose_detector(name: str = "auto") -> Detector:
    """`e-divisive`, `asv`, or `auto`: the best that is installed. Raises UsageError for what is not."""
    table = {"e-divisive": _e_divisive, "asv": _asv_steps}
    package = {"e-divisive": ("otava", "apache-otava"), "asv": ("asv", "asv")}
    wanted = list(table) if name == "auto" else [name]
    if not set(wanted) <= set(table):
        raise UsageError(f"detector {name!r}: no such detector; choose from auto, {', '.join(table)}")
    for choice in wanted:
        if find_spec(package[choice][0]) is not None:
            return Detector(choice, table[choice])
    ways = "; ".join(f"pip install --no-deps {package[choice][1]}" for choice in wanted)
    raise UsageError(f"no change-point detector is installed for {name!r}: {ways}")


def steps(values: Sequence[float], detector: Detector, threshold: float, crowd: Crowd = ALONE) -> list[Step]:
    """Steps of more than `threshold` (0.05 is 5 %) in either direction. Raises ValueError for NaN and infinity."""
    listed = [float(value) for value in finite(values, "history value")]
    if len(listed) < 2 * FEWEST_SIDE:
        return []
    split = _best_split(listed)
    cuts = [0, *(split or sorted(set(detector.find(listed)) - {0})), len(listed)]
    noise = 0.0 if split else noise_of(listed)  # Student's test has weighed it already
    found = []
    for start, index, end in zip(cuts, cuts[1:], cuts[2:], strict=False):
        before, after = listed[start:index], listed[index:end]
        step = Step(index, float(np.median(before)), float(np.median(after)), len(after))
        known = max(noise, crowd.noise * abs(step.before))
        error = OF_MEDIANS * known * (1 / len(before) + 1 / len(after)) ** 0.5
        if len(before) >= FEWEST_SIDE and abs(step.after - step.before) > max(
            threshold * abs(step.before), crowd.sigmas * error
        ):
            found.append(step)
    return found


def _best_split(values: list[float]) -> list[int]:
    """Where a short series falls into two levels that do not overlap, by Student's t; none in a long one."""
    if len(values) > SHORT or len(set(values)) == 1:
        return []
    splits = range(FEWEST_SIDE, len(values) - FEWEST_SIDE + 1)
    apart = [k for k in splits if max(values[:k]) < min(values[k:]) or min(values[:k]) > max(values[k:])]
    chances = [(_student(values[:k], values[k:]), k) for k in apart]
    p_value, best = min(chances, default=(1.0, 0))
    return [best] if p_value < P_SHORT else []


def _student(before: Sequence[float], after: Sequence[float]) -> float:
    if len(set(before)) == len(set(after)) == 1:
        return 0.0  # two levels without any spread
    return float(stats.ttest_ind(before, after).pvalue)


def noise_of(values: Sequence[float]) -> float:
    """Standard deviation of one value, from differences of neighbours: neither a step nor a trend adds to it."""
    differences = [later - earlier for earlier, later in pairwise(values)]
    if not differences:
        return 0.0
    return 1.4826 * float(np.median(np.abs(differences))) / 2**0.5


def _e_divisive(values: list[float]) -> list[int]:
    from otava.analysis import compute_change_points  # type: ignore[import-not-found]

    found, _ = compute_change_points(values, window_len=50, max_pvalue=P_VALUE, min_magnitude=0.0)
    return [int(point.index) for point in found]


def _asv_steps(values: list[float]) -> list[int]:
    from asv.step_detect import detect_steps

    return [left for left, *_ in detect_steps(values)]
