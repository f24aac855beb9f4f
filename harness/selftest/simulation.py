"""The verdict rules against made-up pair means whose truth is known: alarms on identical code, findings of a change.

A rule that was only ever tried on real timings has unknown error rates: nobody knows the truth behind a real timing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.comparison.looks import LookPlan
from harness.comparison.matrix import Outcome, confirm, judge, still_open
from harness.comparison.paired import Budget
from harness.stats import Rate, exact_rate

#: Draws `n` pair means around zero with spread 1: what process pairs look like once their mean is taken away.
NOISES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "heavy-tailed": lambda rng, n: rng.standard_t(3, size=n) / 3**0.5,
    "two-speed": lambda rng, n: rng.choice([-1.0, 1.0], size=n) + rng.normal(scale=0.2, size=n),
}


@dataclass(frozen=True)
class World:
    """The truth: a matrix of items whose log-ratio is `effect` in `changed` of them, and pair means that spread so."""

    items: int
    spread: float
    effect: float = 0.0
    changed: int = 0
    noise: str = "normal"


@dataclass(frozen=True)
class Rates:
    """Per matrix: any false alarm. Per changed item: found, and passed although it changed."""

    alarms: Rate
    found: Rate | None
    missed: Rate | None


def simulate(world: World, matrices: int, seed: int, plan: LookPlan, budget: Budget) -> Rates:
    """Run whole comparisons, with looks, Holm and the confirmation, on drawn numbers."""
    rng = np.random.default_rng(seed)
    alarms = 0
    outcomes: Counter[Outcome] = Counter()
    for _ in range(matrices):
        final = _comparison(world, rng, plan, budget)
        changed, same = final[: world.changed], final[world.changed :]
        alarms += any(outcome is Outcome.FAIL for outcome in same)
        outcomes.update(changed)
    trials = matrices * world.changed
    found, missed = (
        (exact_rate(outcomes[Outcome.FAIL], trials), exact_rate(outcomes[Outcome.PASS], trials))
        if trials
        else (None, None)
    )
    return Rates(exact_rate(alarms, matrices), found, missed)


def _comparison(world: World, rng: np.random.Generator, plan: LookPlan, budget: Budget) -> Sequence[Outcome]:
    def draw(item: int, pairs: int) -> list[float]:
        centre = world.effect if item < world.changed else 0.0
        return [float(x) for x in centre + world.spread * NOISES[world.noise](rng, pairs)]

    samples = {str(item): draw(item, plan.pairs[0]) for item in range(world.items)}
    while wanted := still_open(samples, plan, budget):
        for item, pairs in wanted.items():
            samples[item] += draw(int(item), pairs - len(samples[item]))
    final = judge(samples, plan, budget)
    for item, judged in final.items():
        if judged.outcome is Outcome.FAIL:
            final[item] = confirm(judged, draw(int(item), len(samples[item])), plan, budget)
    return [final[str(item)].outcome for item in range(world.items)]
