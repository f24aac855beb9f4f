"""Five noisy runs without a "significant" difference were read as "no regression". A verdict holds its whole interval
against the budget, says which effect it would have found, and calls the rest undecided.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.comparison.looks import LookPlan
from harness.comparison.matrix import Outcome, confirm, judge, still_open
from harness.comparison.paired import POWER, Budget, estimate

PLAN = LookPlan()
BUDGET = Budget(0.02)
SAME = [0.001, -0.002, 0.0005, -0.001, 0.0015]
SLOWER = [value + 0.05 for value in SAME]
MEANS = st.lists(st.floats(-0.2, 0.2), min_size=5, max_size=18)


def one(means: list[float]) -> Outcome:
    return judge({"cell": means}, PLAN, BUDGET)["cell"].outcome


@pytest.mark.parametrize(
    ("shift", "outcome"),
    [(0.0, Outcome.PASS), (0.05, Outcome.FAIL), (-0.05, Outcome.FASTER), (0.0198, Outcome.INCONCLUSIVE)],
)
def test_the_place_of_the_interval_decides(shift: float, outcome: Outcome) -> None:
    assert one([value + shift for value in SAME]) is outcome


def test_the_interval_is_students_over_pair_means() -> None:
    found = estimate(SLOWER, BUDGET, 0.025)
    known = stats.ttest_1samp(SLOWER, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((known.low, known.high))
    assert found.p_slower == pytest.approx(stats.ttest_1samp(SLOWER, BUDGET.log, alternative="greater").pvalue)
    assert found.p_faster == pytest.approx(stats.ttest_1samp(SLOWER, -BUDGET.log, alternative="less").pvalue)


def test_the_stated_detectable_effect_is_found_about_as_often_as_stated() -> None:
    rng = np.random.default_rng(3)

    def draw(centre: float) -> list[float]:
        return [float(x) for x in rng.normal(centre, 0.01, 12)]

    effect = float(np.mean([estimate(draw(0.0), BUDGET, 0.025).detectable for _ in range(300)]))
    hits = sum(estimate(draw(effect), BUDGET, 0.025).low > BUDGET.log for _ in range(1000))
    assert abs(hits / 1000 - POWER) < 0.06


@given(MEANS)
def test_swapping_the_sides_swaps_slower_and_faster(means: list[float]) -> None:
    there, back = estimate(means, BUDGET, 0.01), estimate([-x for x in means], BUDGET, 0.01)
    assert there.p_slower == pytest.approx(back.p_faster, abs=1e-12)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=1e-12)


@given(MEANS)
def test_no_item_is_slower_and_within_the_budget_at_once(means: list[float]) -> None:
    judged = judge({"cell": means}, PLAN, BUDGET)["cell"]
    assert judged.estimate is not None
    if judged.outcome is Outcome.PASS:
        assert judged.estimate.high < BUDGET.log
    assert f"over {judged.estimate.pairs} pairs" in judged.sentence


@given(MEANS, st.integers(1, 15))
def test_other_items_of_the_matrix_make_no_alarm_more_likely(means: list[float], others: int) -> None:
    alone = one(means)
    among = judge({"cell": means, **{str(i): SAME for i in range(others)}}, PLAN, BUDGET)["cell"].outcome
    assert among is alone or (alone in (Outcome.FAIL, Outcome.FASTER) and among is not Outcome.FAIL)


def test_an_item_over_the_budget_only_when_judged_alone_is_undecided_in_the_matrix_and_says_so() -> None:
    means = [0.03, 0.045, 0.028, 0.05, 0.04]
    assert one(means) is Outcome.FAIL
    judged = judge({"cell": means, **{str(i): SAME for i in range(19)}}, PLAN, BUDGET)["cell"]
    assert judged.outcome is Outcome.INCONCLUSIVE
    assert "alone among 20 items" in judged.sentence


def test_only_undecided_items_get_more_pairs_and_never_more_than_planned() -> None:
    wide = [0.0, 0.06, -0.03, 0.05, 0.01]
    assert still_open({"same": SAME, "slower": SLOWER, "wide": wide, "young": SAME[:2]}, PLAN, BUDGET) == {
        "wide": PLAN.pairs[1],
        "young": PLAN.pairs[0],
    }
    assert still_open({"wide": (wide * 4)[: PLAN.pairs[-1]]}, PLAN, BUDGET) == {}


def test_an_item_short_of_its_first_look_is_undecided_whatever_it_measured() -> None:
    assert one(SAME[:4]) is Outcome.INCONCLUSIVE
    assert one([]) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_pair_that_is_no_number_is_refused_and_never_dropped(bad: float) -> None:
    with pytest.raises(ValueError, match="1 of 5 values of pair mean"):
        one([*SAME[:4], bad])


def test_a_fail_that_repeats_is_a_fail_and_says_both_measurements() -> None:
    first = judge({"cell": SLOWER}, PLAN, BUDGET)["cell"]
    again = confirm(first, SLOWER, PLAN, BUDGET)
    assert again.outcome is Outcome.FAIL
    assert "measured again" in again.sentence


def test_a_fail_that_does_not_repeat_is_undecided_and_never_a_pass() -> None:
    first = judge({"cell": SLOWER}, PLAN, BUDGET)["cell"]
    again = confirm(first, SAME, PLAN, BUDGET)
    assert again.outcome is Outcome.INCONCLUSIVE
    assert "suspect the machine" in again.sentence


def test_only_a_fail_is_measured_again() -> None:
    with pytest.raises(ValueError, match="only a FAIL"):
        confirm(judge({"cell": SAME}, PLAN, BUDGET)["cell"], SAME, PLAN, BUDGET)


@pytest.mark.parametrize("change", [0.0, -0.01, 1.0, 2.0, float("nan")])
def test_a_budget_that_is_no_share_is_refused(change: float) -> None:
    with pytest.raises(ValueError, match="budget"):
        Budget(change)


def test_pairs_without_any_spread_are_judged_by_their_place() -> None:
    assert one([0.0] * 5) is Outcome.PASS
    assert one([0.05] * 5) is Outcome.FAIL
    assert math.isclose(estimate([0.05] * 5, BUDGET, 0.01).detectable, BUDGET.log)
