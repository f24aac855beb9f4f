"""Twenty nights of identical code ended in a regression of 9 %, at the commit that had given the faster value twice.

A step between nights of one commit is the machine's. A commit is not excused by that: its own first night, one early
value and a count that changes are judged as before.
"""

from __future__ import annotations

from harness.history.check import Kind, check, judge
from suites.instrument.history_series import ASV, FIRST_NIGHT, LIMITS, history, judged, noisy, series

#: Two fast nights and four slow ones, as a machine gives that others use.
WANDERED = [3178.0, 3158.0, 3439.0, 3443.0, 3461.0, 3458.0]


def test_a_step_between_nights_of_one_commit_is_the_machines() -> None:
    """Twenty nights of identical code ended in a regression of 9 % at the very commit that had been fast."""
    found = judge(series(WANDERED, commits=[0] * 6), LIMITS, ASV)
    assert {finding.kind for finding in found} == {Kind.MACHINE}
    assert "the same commit gave the earlier value in 2 runs" in found[0].message
    assert check(history(series(WANDERED, commits=[0] * 6)), LIMITS, ASV, FIRST_NIGHT.date()).exit_code == 0


def test_a_step_at_a_commits_first_night_is_the_commits_however_often_it_ran() -> None:
    slow = noisy([100.0] * 4 + [110.0] * 4, 1)
    assert judged(slow, commits=[0, 0, 1, 1, 2, 2, 2, 2]) == [(Kind.REGRESSION, "c002")]


def test_one_early_value_of_a_commit_does_not_excuse_it() -> None:
    values = noisy([100.0] * 5 + [110.0] * 4, 2)
    assert (Kind.REGRESSION, "c004") in judged(values, commits=[0, 1, 2, 3, 4, 4, 4, 4, 4])


def test_after_the_machine_moved_the_next_commit_is_held_against_its_new_speed() -> None:
    moved = noisy([100.0] * 4 + [110.0] * 5, 3)
    assert [kind for kind, _ in judged(moved, commits=[0, 0, 0, 0, 0, 0, 1, 2, 3])] == [Kind.MACHINE]
    worse = moved + noisy([125.0] * 3, 4)
    assert (Kind.REGRESSION, "c004") in judged(worse, commits=[0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6])


def test_a_count_that_changes_within_one_commit_is_a_regression_still() -> None:
    assert judged([7, 7, 7, 8], exact=True, commits=[0] * 4) == [(Kind.REGRESSION, "c000")]
