"""A comparison that measures until it finds a difference finds one in identical code. The looks are fixed in advance,
they share one error rate, and the rates are simulated here on numbers whose truth is known.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.comparison.looks import LookPlan, holm
from harness.comparison.paired import Budget
from harness.selftest.simulation import NOISES, World, simulate

PLAN = LookPlan()
BUDGET = Budget(0.02)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("pairs", "rule"),
    [
        ((), "1 to 4 looks"),
        ((5, 6, 7, 8, 9), "1 to 4 looks"),
        ((4, 8), "at least 5 pairs"),
        ((5, 5), "more pairs than the one before"),
        ((8, 5), "more pairs than the one before"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_by_name(pairs: tuple[int, ...], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        LookPlan(pairs)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 5.0, float("nan")])
def test_an_error_rate_outside_zero_and_one_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        LookPlan(alpha=alpha)


def test_the_looks_of_one_direction_share_half_of_alpha() -> None:
    assert math.isclose(PLAN.look_alpha * len(PLAN.pairs) * 2, PLAN.alpha)


def test_a_look_is_reached_only_with_all_of_its_pairs() -> None:
    plan = LookPlan((5, 8, 12))
    assert (plan.reached(4), plan.reached(5), plan.reached(11)) == ((), (5,), (5, 8))
    assert (plan.next(0), plan.next(5), plan.next(12)) == (5, 8, None)


def test_holm_rejects_what_the_textbook_example_rejects() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]


@given(P_VALUES, st.floats(0.001, 0.2))
def test_holm_rejects_at_least_what_bonferroni_does_and_nothing_above_alpha(
    p_values: list[float], alpha: float
) -> None:
    for p, rejected in zip(p_values, holm(p_values, alpha), strict=True):
        assert rejected or p > alpha / len(p_values)
        assert p <= alpha or not rejected


@given(P_VALUES, st.data())
def test_more_evidence_against_one_item_never_clears_another(p_values: list[float], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(p_values) - 1))
    lower = [*p_values]
    lower[index] = data.draw(st.floats(0, p_values[index]))
    before, after = holm(p_values, 0.05), holm(lower, 0.05)
    assert all(now or not then for then, now in zip(before, after, strict=True))


def test_a_p_value_that_is_no_number_rejects_nothing() -> None:
    assert holm([float("nan")], 0.05) == [False]


@pytest.mark.parametrize("noise", NOISES)
def test_identical_code_raises_no_alarm_in_a_matrix_of_twenty(noise: str) -> None:
    rates = simulate(World(items=20, spread=0.01, noise=noise), 150, 20260101, PLAN, BUDGET)
    print(f"identical code, {noise}: a FAIL in {rates.alarms} matrices")
    assert rates.alarms.hits == 0


@pytest.mark.parametrize("noise", NOISES)
def test_a_step_five_percent_slower_is_found_and_never_passed(noise: str) -> None:
    world = World(items=20, spread=0.007, effect=math.log(1.05), changed=2, noise=noise)
    rates = simulate(world, 60, 20260101, PLAN, BUDGET)
    print(f"5 % slower, {noise}: found {rates.found}, passed {rates.missed}")
    assert rates.found is not None
    assert rates.missed is not None
    assert rates.missed.hits == 0
    assert rates.found.low > 0.9


def test_a_change_of_exactly_the_budget_is_passed_no_more_often_than_its_share_of_alpha() -> None:
    world = World(items=1, spread=0.01, effect=BUDGET.log, changed=1)
    rates = simulate(world, 1500, 7, PLAN, BUDGET)
    assert rates.missed is not None
    print(f"a change of exactly the budget: passed {rates.missed}")
    assert rates.missed.low <= PLAN.side_alpha


def test_the_simulation_can_raise_an_alarm_at_all() -> None:
    """The control: without confirmation and with a change above the budget in every item, none is quiet."""
    rates = simulate(World(items=5, spread=0.001, effect=0.04, changed=5), 10, 1, PLAN, BUDGET)
    assert rates.found is not None
    assert rates.found.hits == 50
