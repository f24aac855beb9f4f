"""All items of a comparison judged together: Holm over the matrix, four looks at most, one confirmation before a FAIL.

Sixty cells tested at 5 % each raise three alarms a night on identical code, and soon nobody reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from harness.comparison.looks import LookPlan, holm
from harness.comparison.paired import Budget, Estimate, estimate

PairMeans = Mapping[str, Sequence[float]]


class Outcome(str, Enum):
    PASS = "pass"
    FAIL = "fail"
    FASTER = "faster"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Judgement:
    """One item's outcome with the figures of its last look, and one sentence."""

    outcome: Outcome
    estimate: Estimate | None
    sentence: str


def judge(samples: PairMeans, plan: LookPlan, budget: Budget) -> dict[str, Judgement]:
    """Judge every item by the looks that it has come to. Items are compared in one family per direction.

    Pure: the same numbers give the same outcomes. An item short of its first look is INCONCLUSIVE.
    """
    history = {item: _looks(means, plan, budget) for item, means in samples.items()}
    slower = _rejected({item: [e.p_slower for e in looks] for item, looks in history.items()}, plan)
    faster = _rejected({item: [e.p_faster for e in looks] for item, looks in history.items()}, plan)
    return {
        item: _judgement(looks, len(samples[item]), slower[item], faster[item], plan, budget, len(samples))
        for item, looks in history.items()
    }


def still_open(samples: PairMeans, plan: LookPlan, budget: Budget) -> dict[str, int]:
    """Items that need more pairs, each with the number of pairs that its next look wants."""
    wanted = {}
    for item, judged in judge(samples, plan, budget).items():
        look = plan.next(len(samples[item]))
        if judged.outcome is Outcome.INCONCLUSIVE and look is not None:
            wanted[item] = look
    return wanted


def confirm(first: Judgement, again: Sequence[float], plan: LookPlan, budget: Budget) -> Judgement:
    """The last word on a FAIL after one fresh re-measurement. It never becomes a PASS.

    The second measurement stands alone, so it is one look at one item: it may use the whole error rate of its side.
    """
    if first.outcome is not Outcome.FAIL:
        raise ValueError(f"only a FAIL is measured again, and this is {first.outcome.value}: {first.sentence}")
    second = estimate(again, budget, plan.side_alpha)
    if second.p_slower <= plan.side_alpha:
        return Judgement(Outcome.FAIL, first.estimate, f"{first.sentence}; measured again: {second}")
    return Judgement(
        Outcome.INCONCLUSIVE,
        first.estimate,
        f"slower once and not again, so suspect the machine: first {first.estimate}, then {second}",
    )


def _looks(means: Sequence[float], plan: LookPlan, budget: Budget) -> list[Estimate]:
    return [estimate(means[:look], budget, plan.look_alpha) for look in plan.reached(len(means))]


def _rejected(p_values: Mapping[str, Sequence[float]], plan: LookPlan) -> dict[str, bool]:
    """Holm over items. An item's p-value is its smallest times the number of planned looks, whenever it stopped."""
    over_looks = [min([*each, 1.0]) * len(plan.pairs) for each in p_values.values()]
    return dict(zip(p_values, holm(over_looks, plan.side_alpha), strict=True))


def _judgement(
    looks: Sequence[Estimate], pairs: int, slower: bool, faster: bool, plan: LookPlan, budget: Budget, family: int
) -> Judgement:
    if not looks:
        return Judgement(Outcome.INCONCLUSIVE, None, f"{pairs} pairs, and the first look needs {plan.pairs[0]}")
    last = looks[-1]
    limit = f"budget {100 * budget.change:g} %"
    if slower:
        return Judgement(Outcome.FAIL, last, f"slower than the {limit}: {last}")
    if faster:
        return Judgement(Outcome.FASTER, last, f"faster than the {limit}: {last}")
    if last.high < budget.log:
        return Judgement(Outcome.PASS, last, f"within the {limit}: {last}")
    alone = f", though it would be over it alone among {family} items" if last.low > budget.log else ""
    return Judgement(Outcome.INCONCLUSIVE, last, f"straddles the {limit}{alone}: {last}")
