"""A NaN averaged into a latency was published; a bound quoted from memory was wrong by one trial."""

from __future__ import annotations

import pytest

from harness.stats import binomial_upper_bound, clean_trials_needed, finite, percentile, quartiles


def test_sixty_clean_launches_bound_the_failure_rate_below_five_percent() -> None:
    assert binomial_upper_bound(0, 60) < 0.05 < binomial_upper_bound(0, 58)


def test_the_number_of_clean_trials_is_the_smallest_that_reaches_the_bound() -> None:
    needed = clean_trials_needed(0.05)
    assert binomial_upper_bound(0, needed) < 0.05 <= binomial_upper_bound(0, needed - 1)


def test_three_hundred_clean_verdicts_bound_the_alarm_rate_to_one_percent() -> None:
    assert clean_trials_needed(0.01) <= 300


def test_a_failure_in_every_trial_bounds_nothing() -> None:
    assert binomial_upper_bound(7, 7) == 1.0


def test_a_failure_raises_the_bound() -> None:
    assert binomial_upper_bound(1, 60) > binomial_upper_bound(0, 60)


@pytest.mark.parametrize(("bad", "trials"), [(0, 0), (-1, 5), (6, 5)])
def test_counts_that_no_experiment_can_give_are_refused(bad: int, trials: int) -> None:
    with pytest.raises(ValueError, match=f"{bad} bad of {trials}"):
        binomial_upper_bound(bad, trials)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_a_confidence_outside_zero_and_one_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        binomial_upper_bound(0, 60, confidence)
    with pytest.raises(ValueError, match="confidence"):
        clean_trials_needed(0.05, confidence)


def test_quartiles_interpolate_between_samples() -> None:
    assert quartiles([4.0, 1.0, 3.0, 2.0]) == (1.75, 2.5, 3.25)


def test_a_percentile_of_one_sample_is_that_sample() -> None:
    assert percentile([3.0], 99.9) == 3.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_sample_that_is_not_a_number_is_refused_and_never_dropped(bad: float) -> None:
    with pytest.raises(ValueError, match="1 of 2 values of latency"):
        finite([1.0, bad], "latency")


def test_no_samples_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="no latency"):
        quartiles([], "latency")
