"""A nightly whose second step had failed for a week was green, and one that alarmed at each outlier was muted.

Here the whole of it runs: on runs that a night leaves behind, with a slowdown planted in one commit of six, and once as
the command itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import FAILED, INCOMPLETE, PASS, UsageError
from harness.history.changepoints import choose_detector
from harness.history.check import Limits
from harness.nightly import Night
from harness.store import RunData
from suites.instrument.spine import fake_environment, harness, write_profile
from suites.instrument.stored_nights import lane, make_commits, store


def level(us: float, seed: int) -> list[float]:
    """Thirty samples whose own spread says nothing of how processes differ."""
    chance = random.Random(seed)
    process = us * (1 + chance.gauss(0, 0.007))
    return [process * (1 + chance.gauss(0, 0.02)) for _ in range(30)]


def night(results: Path, measure: Callable[[bool], RunData], told: list[str]) -> Night:
    return Night(measure, results, results / "repo", Limits(), choose_detector("asv"), told.append)


@pytest.mark.parametrize("bad", [2, 3, 4])
def test_ten_percent_planted_in_one_of_six_commits_is_named(bad: int, tmp_path: Path) -> None:
    commits, told = make_commits(tmp_path / "repo", 6), list[str]()
    for index, commit in enumerate(commits[:-1]):
        store(tmp_path, commit, index, lane(level(1000.0 if index < bad else 1100.0, index)))

    def measure(again: bool) -> RunData:
        return store(tmp_path, commits[-1], 5.1 if again else 5, lane(level(1100.0, 50 + again)))

    assert night(tmp_path, measure, told).run() == FAILED
    assert f"REGRESSION at {commits[bad][:12]}: 1 series" in told


def test_commits_are_in_their_own_order_whenever_they_were_measured(tmp_path: Path) -> None:
    commits, told = make_commits(tmp_path / "repo", 6), list[str]()
    for started, index in enumerate([4, 0, 3, 1, 2]):
        store(tmp_path, commits[index], started, lane(level(1000.0 if index < 3 else 1100.0, index)))
    assert night(tmp_path, lambda _: store(tmp_path, commits[5], 9, lane(level(1100.0, 5))), told).run() == FAILED
    assert f"REGRESSION at {commits[3][:12]}: 1 series" in told


def quiet_nights(results: Path, count: int) -> list[str]:
    commits = make_commits(results / "repo", count + 1)
    for index, commit in enumerate(commits[:-1]):
        store(results, commit, index, lane(level(1000.0, index)))
    return commits


def test_an_outlier_is_measured_again_and_taken_back(tmp_path: Path) -> None:
    commits, asked, told = quiet_nights(tmp_path, 8), list[bool](), list[str]()

    def measure(again: bool) -> RunData:
        asked.append(again)
        return store(tmp_path, commits[-1], 8.1 if again else 8, lane(level(1000.0 if again else 1120.0, 90 + again)))

    assert night(tmp_path, measure, told).run() == PASS
    assert asked == [False, True]
    assert any("measuring again" in line for line in told)


def test_a_slowdown_of_tonight_is_confirmed_by_its_second_look(tmp_path: Path) -> None:
    commits, told = quiet_nights(tmp_path, 8), list[str]()

    def measure(again: bool) -> RunData:
        return store(tmp_path, commits[-1], 8.1 if again else 8, lane(level(1100.0, 90 + again)))

    assert night(tmp_path, measure, told).run() == FAILED
    assert f"REGRESSION at {commits[-1][:12]}: 1 series" in told


def test_no_step_of_a_night_hides_the_exit_code_of_another(tmp_path: Path) -> None:
    commits = quiet_nights(tmp_path, 8)
    fine = night(tmp_path, lambda _: store(tmp_path, commits[-1], 8, lane(level(1000.0, 8)), code=FAILED), [])
    assert fine.run() == FAILED, "the history is quiet, the run is not"


def test_pages_that_cannot_be_made_make_the_night_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[str]:
        raise UsageError("asv cannot import the suite")

    monkeypatch.setattr("harness.nightly.publish", refuse)
    commits, told = quiet_nights(tmp_path, 8), list[str]()
    tonight = night(tmp_path, lambda _: store(tmp_path, commits[-1], 8, lane(level(1000.0, 8))), told)
    tonight.asv_results = tmp_path / "asv"
    assert tonight.run() == INCOMPLETE
    assert "asv: not published: asv cannot import the suite" in told


def test_a_cell_that_stopped_giving_figures_makes_the_night_incomplete(tmp_path: Path) -> None:
    commits, told = quiet_nights(tmp_path, 8), list[str]()
    assert night(tmp_path, lambda _: store(tmp_path, commits[-1], 8), told).run() == INCOMPLETE
    assert any(line.startswith("NO FIGURE") for line in told)


def test_the_command_measures_judges_looks_back_and_leaves_a_page(tmp_path: Path) -> None:
    arguments = ["nightly", "--profile", str(write_profile(tmp_path)), "--device", "cpu", "--no-publish"]
    code, out, err = harness(*arguments, cwd=tmp_path, env=fake_environment())
    assert code == PASS, out + err
    assert "asv: not published, as asked for" in out
    assert "PASS: 4 of 4 cells" in out
    page = next((tmp_path / "results" / "runs").glob("*/history.md")).read_text()
    assert "series checked with" in page
    code, out, err = harness("history", cwd=tmp_path, env=fake_environment())
    assert code == PASS, err
    assert "series that can be judged" in out


def test_the_command_fails_with_its_run(tmp_path: Path) -> None:
    arguments = ["nightly", "--profile", str(write_profile(tmp_path)), "--device", "cpu", "--no-publish"]
    code, out, _ = harness(*arguments, cwd=tmp_path, env=fake_environment({"level=3": "wrong"}))
    assert code == FAILED
    assert "series checked with" in out, "the history is looked at all the same"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["history"], "no figures in results"),
        (["history", "--source", "memory"], "choose from records, asv, both"),
        (["history", "--step-limit", "7"], "must lie between 0 and 1"),
        (["history", "--source", "asv"], "no asv results at results/asv"),
        (["export"], "no run below results/runs"),
        (["backfill"], "none of 0 runs"),
    ],
)
def test_a_command_that_has_nothing_to_do_says_so_and_exits_with_two(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    code, _, err = harness(*arguments, cwd=tmp_path, env=fake_environment())
    assert code == 2
    assert message in err
