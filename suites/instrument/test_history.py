"""A history check errs in two ways: +46 % in twenty commits raised nothing, and a markdown-only commit raised an alarm.

So both are counted here, on series with seeded noise: what was planted is named at its commit, and what is identical
stays silent night after night.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.errors import FAILED, INCOMPLETE, PASS, UsageError
from harness.history import changepoints
from harness.history.annotate import difference, missing_nights, ranges, segments
from harness.history.changepoints import Crowd, Detector, choose_detector, noise_of, steps
from harness.history.check import Kind, Limits, Report, check, judge, lines
from harness.history.creep import drift
from harness.history.figures import figures_of
from harness.history.series import History, environment_of, history_of_asv, history_of_records
from harness.records import LaneRecord
from suites.instrument.history_series import ASV, FIRST_NIGHT, LIMITS, history, judged, noisy, series
from suites.instrument.stored_nights import lane, make_commits, store


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("at", [3, 4])
def test_ten_percent_in_one_of_six_commits_is_named(at: int, seed: int) -> None:
    assert judged(noisy([100.0] * at + [110.0] * (6 - at), seed)) == [(Kind.REGRESSION, f"c{at:03}")]


@pytest.mark.parametrize("seed", range(5))
def test_a_step_in_a_long_series_is_named_at_its_commit(seed: int) -> None:
    assert judged(noisy([100.0] * 25 + [110.0] * 15, seed)) == [(Kind.REGRESSION, "c025")]


@pytest.mark.parametrize("seed", range(10))
def test_a_creep_that_no_commit_answers_for_is_caught_within_twenty(seed: int) -> None:
    values = noisy([100 * 1.003**commit for commit in range(21)], seed)
    assert [kind for kind, _ in judged(values)] == [Kind.DRIFT]
    assert not steps(values, ASV, LIMITS.step), "and the step detector alone would have missed it"


def test_the_drift_of_a_creep_is_told_with_its_size_and_its_test() -> None:
    found = judge(series([100 * 1.003**commit for commit in range(21)]), LIMITS, ASV)
    assert "+4.9 % since c000 (pinned test" in found[0].message


def test_identical_noisy_code_raises_nothing_in_twenty_repeated_nights() -> None:
    chance = random.Random(7)
    nights: list[list[float]] = [[] for _ in range(18)]
    alarms = []
    for night in range(20):
        for values in nights:
            values.append(100 * (1 + chance.gauss(0, 0.015)))
        report = check(history(*map(series, nights)), LIMITS, ASV, FIRST_NIGHT.date() + timedelta(night))
        alarms += [(night, finding) for finding in report.findings]
        assert report.exit_code == PASS
    assert alarms == []


def crowd_of(levels: Sequence[float], count: int, spread: float) -> History:
    return history(*(replace(series(noisy(levels, seed, spread)), name=f"row {seed}") for seed in range(count)))


def test_three_hundred_noisy_series_of_identical_code_raise_nothing_in_the_first_nights() -> None:
    """Each test was right on its own, and one of three hundred was wrong nearly every night."""
    tempted = 0
    for nights in (5, 7, 9, 12):
        crowd = crowd_of([100.0] * nights, 300, spread=0.03)
        report = check(crowd, LIMITS, ASV, date(2026, 11, 1))
        assert report.of(Kind.REGRESSION) + report.of(Kind.DRIFT) == [], nights
        alone = (judge(one, LIMITS, ASV) for one in crowd.series)
        tempted += sum(found.kind is Kind.REGRESSION for findings in alone for found in findings)
    assert tempted, "judged each on its own, they do"


def test_ten_percent_in_one_of_six_commits_is_named_in_the_midst_of_three_hundred_series() -> None:
    report = check(crowd_of([100.0] * 3 + [110.0] * 3, 300, spread=0.01), LIMITS, ASV, date(2026, 11, 6))
    named = report.by_commit(Kind.REGRESSION)
    assert [commit for commit, _ in named] == ["c003"]
    assert len(named[0][1]) > 250


def test_a_few_series_say_nothing_of_a_machines_noise_that_each_does_not_know() -> None:
    few = Crowd.of([noisy([100.0] * 6, seed, 0.03) for seed in range(4)])
    many = Crowd.of([noisy([100.0] * 6, seed, 0.03) for seed in range(300)])
    assert (few.size, few.noise) == (4, 0.0)
    assert few.sigmas == pytest.approx(3.02, abs=0.01)
    assert many.noise == pytest.approx(0.03, rel=0.15)
    assert many.sigmas == pytest.approx(4.15, abs=0.01)


def test_one_fresh_outlier_asks_to_be_measured_again() -> None:
    values = noisy([100.0] * 15, seed=1)
    assert judged([*values, 110.0]) == [(Kind.SUSPECT, "c015")]
    assert judged([*values, 110.0, 100.2]) == [], "the second look took it back"
    assert judged([*values, 110.0, 110.3]) == [(Kind.REGRESSION, "c015")], "the second look confirmed it"


def test_a_suspect_is_inconclusive_and_a_regression_fails() -> None:
    values = noisy([100.0] * 15, seed=1)
    assert check(history(series([*values, 110.0])), LIMITS, ASV, date(2026, 11, 16)).exit_code == INCOMPLETE
    assert check(history(series([*values, 110.0, 110.0])), LIMITS, ASV, date(2026, 11, 17)).exit_code == FAILED


def test_another_machine_is_told_and_its_level_is_held_against_none() -> None:
    values = noisy([100.0] * 12 + [130.0] * 12, seed=6)
    points = series(values).points
    both = [
        replace(series([]), machine=name, points=points[cut])
        for name, cut in (("old", slice(12)), ("new", slice(12, None)))
    ]
    report = check(history(*both), LIMITS, ASV, date(2026, 11, 24))
    assert report.findings == ()
    assert [note.partition(";")[0] for note in report.notes] == [
        "machine old: nights from 2026-11-01 to 2026-11-12",
        "machine new: nights from 2026-11-13 to 2026-11-24",
    ]


@pytest.mark.parametrize(
    "fact", ["gpus.0.driver", "gpus.0.power_cap_w", "os.kernel", "software.triton", "params.series"]
)
def test_every_fact_of_the_environment_ends_a_segment_whatever_it_is(fact: str) -> None:
    values = noisy([100.0] * 15 + [120.0] * 15, seed=2)
    whole = series(values)
    points = [
        replace(point, environment={fact: "a" if night < 15 else "b"}) for night, point in enumerate(whole.points)
    ]
    found = judge(replace(whole, points=tuple(points)), LIMITS, ASV)
    assert [(finding.kind, finding.commit) for finding in found] == [(Kind.CHANGED, "c015")]
    assert f"{fact} a -> b" in found[0].message


def test_an_improvement_is_told_and_does_not_fail() -> None:
    values = noisy([100.0] * 15 + [90.0] * 10, seed=3)
    report = check(history(series(values)), LIMITS, ASV, date(2026, 11, 25))
    assert [(finding.kind, finding.commit) for finding in report.findings] == [(Kind.IMPROVEMENT, "c015")]
    assert report.exit_code == PASS


def test_another_torch_is_annotated_and_never_a_regression() -> None:
    values = noisy([100.0] * 15 + [120.0] * 15, seed=2)
    changed = series(values, environments=["2.11.0"] * 15 + ["2.13.0"] * 15)
    found = judge(changed, LIMITS, ASV)
    assert [(finding.kind, finding.commit) for finding in found] == [(Kind.CHANGED, "c015")]
    assert "software.torch 2.11.0 -> 2.13.0; +20" in found[0].message
    assert "not judged" in found[0].message
    assert check(history(changed), LIMITS, ASV, date(2026, 11, 30)).exit_code == PASS


def test_what_the_pinned_release_has_already_is_known_and_growth_counts_from_it() -> None:
    values = noisy([100.0] * 10 + [115.0] * 15, seed=4)
    pinned = Limits(pinned="c012")
    assert judged(values, pinned) == [(Kind.KNOWN, "c010")]
    creeping = noisy([100.0] * 10 + [115 * 1.003**commit for commit in range(21)], seed=4)
    assert (Kind.DRIFT, "c012") in judged(creeping, pinned)


def test_one_more_copy_is_a_regression_at_once() -> None:
    assert judged([8.0, 8.0, 9.0], exact=True) == [(Kind.REGRESSION, "c002")]
    assert judged([0.0, 1.0], exact=True) == [(Kind.REGRESSION, "c001")]
    assert judged([8.0, 7.0], exact=True) == [(Kind.IMPROVEMENT, "c001")]


def test_a_night_without_a_figure_is_told_and_is_not_a_pass() -> None:
    report = check(history(series([*noisy([100.0] * 12, 5), None])), LIMITS, ASV, date(2026, 11, 13))
    assert [finding.kind for finding in report.findings] == [Kind.NO_FIGURE]
    assert report.exit_code == INCOMPLETE


def test_a_hole_in_the_middle_changes_nothing() -> None:
    values: list[float | None] = list(noisy([100.0] * 25 + [110.0] * 15, 6))
    values[10] = None
    assert judged(values) == [(Kind.REGRESSION, "c025")]


def test_nights_that_are_not_there_are_named() -> None:
    kept = [point for point in series(noisy([100.0] * 12, 8)).points if point.commit not in ("c003", "c004", "c008")]
    report = check(history(replace(series([]), points=tuple(kept))), LIMITS, ASV, date(2026, 11, 14))
    assert report.notes == ("nights without a run: 5 (2026-11-04 to 2026-11-05, 2026-11-09, 2026-11-13 to 2026-11-14)",)
    assert missing_nights([], date(2026, 11, 1)) == []
    assert ranges([]) == ""


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_makes_asv_hang_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        steps([1.0, 1.0, bad, 1.0, 1.0, 1.0], ASV, 0.05)
    with pytest.raises(ValueError, match="NaN or infinite"):
        drift([bad] * 12, 0.03)


def test_noise_is_not_raised_by_a_step_or_a_trend() -> None:
    flat = noisy([100.0] * 200, seed=9)
    for shifted in ([value + (50 if index > 100 else 0) for index, value in enumerate(flat)],):
        assert noise_of(shifted) == pytest.approx(noise_of(flat), rel=0.05)
    assert noise_of([value + 0.1 * index for index, value in enumerate(flat)]) == pytest.approx(1.0, rel=0.25)
    assert noise_of([1.0]) == 0.0


def test_the_best_detector_that_is_installed_is_used_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def only(*installed: str) -> None:
        found = {"otava": "otava" in installed, "asv": "asv" in installed}
        monkeypatch.setattr(changepoints, "find_spec", lambda name: found[name] or None)

    only("otava", "asv")
    assert choose_detector().name == "e-divisive"
    only("asv")
    assert choose_detector().name == "asv"
    with pytest.raises(UsageError, match="pip install --no-deps apache-otava"):
        choose_detector("e-divisive")
    only()
    with pytest.raises(UsageError, match="no change-point detector is installed"):
        choose_detector()
    with pytest.raises(UsageError, match="choose from auto, e-divisive, asv"):
        choose_detector("magic")


def test_a_detector_that_cuts_noise_is_overruled_by_the_size_of_the_step() -> None:
    eager = Detector("everywhere", lambda values: list(range(2, len(values), 3)))
    assert steps(noisy([100.0] * 30, seed=10), eager, 0.05) == []
    assert steps(noisy([100.0] * 30, seed=10, spread=0.05), eager, 0.05) == []
    assert [step.index for step in steps([100.0] * 5 + [120.0] * 4, eager, 0.05)] == [5]


def test_a_branch_of_six_commits_is_judged_without_a_detectors_help() -> None:
    blind = Detector("blind", lambda values: [])
    assert [step.index for step in steps([100.0, 101.0, 99.0, 110.0, 111.0, 109.0], blind, 0.05)] == [3]
    assert steps([100.0, 101.0, 110.0, 99.0, 111.0, 109.0], blind, 0.05) == [], "the levels overlap"
    assert steps([5.0] * 6, blind, 0.05) == []


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1])
def test_a_limit_that_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        Limits(step=value)
    with pytest.raises(ValueError, match="drift limit"):
        Limits(drift=value)


def test_the_report_names_the_commit_once_for_all_its_series() -> None:
    slow = [replace(series(noisy([100.0] * 4 + [110.0] * 4, seed)), name=f"row {seed}") for seed in range(7)]
    report = check(history(*slow), LIMITS, ASV, date(2026, 11, 8))
    text = list(lines(report))
    assert "7 series checked with asv change points" in text[0]
    assert text[1] == "REGRESSION at c004: 7 series"
    assert text[-1] == "    and 2 more"
    assert list(lines(Report("asv", 3, 3, 2)))[-1] == "nothing got dearer in the 1 series that can be judged"


def test_a_first_night_is_not_told_as_a_pass() -> None:
    report = check(history(series([1.0]), series([1.0], exact=True)), LIMITS, ASV, date(2026, 11, 1))
    assert (report.checked, report.too_short, report.untold) == (2, 1, 2)
    assert list(lines(report))[-1] == "nothing got dearer in the 0 series that can be judged"


def test_an_environment_is_flat_and_leaves_out_what_passes() -> None:
    facts = {
        "cpu": {"model": "x"},
        "gpus": [{"name": "MI300X", "driver": "6.3"}],
        "software": {"torch": "2.13.0"},
        "now": {"load_1min": "3"},
        "memory_mib": 4,
    }
    flat = environment_of(facts)
    assert flat["gpus.0.driver"] == "6.3"
    assert not any(name.startswith(("now", "memory")) for name in flat)
    assert difference(flat, {**flat, "gpus.0.driver": "6.4"}) == "gpus.0.driver 6.3 -> 6.4"
    assert difference({str(n): "a" for n in range(6)}, {}).endswith("; and 2 more")


def test_segments_follow_the_environment_back_and_forth() -> None:
    cut = segments(series([1.0, 2.0, None, 3.0], environments=["a", "b", "b", "a"]))
    assert [segment.values for segment in cut] == [[1.0], [2.0], [3.0]]
    assert segments(series([None])) == []


def start_of(cache: str) -> LaneRecord:
    made, loaded = {"cold": (3, 0), "warm": (0, 3), "mixed": (1, 2), "reused": (3, 0), "": (0, 0)}[cache]
    compiles = {"num_inductor_compiles": made, "num_cache_hits": loaded}
    capture = {"compile_s": 0.0 if cache in ("reused", "") else 9.0, "start_s": 11.0, "compiles": compiles}
    return lane([1000.0], capture=capture)


@pytest.mark.parametrize("cache", ["cold", "warm", "mixed", "reused", ""])
def test_a_start_is_told_apart_by_what_it_found_in_the_cache(cache: str) -> None:
    found = {figure.cache for figure in figures_of(start_of(cache)) if figure.metric in ("compile_s", "first_graph_s")}
    assert found == {cache}


def test_a_start_that_is_warm_tonight_is_no_speed_up_and_no_hole(tmp_path: Path) -> None:
    commits = make_commits(tmp_path / "repo", 8)
    for night, commit in enumerate(commits):
        store(tmp_path, commit, night, start_of("warm" if night > 5 else "cold"))
    read = history_of_records(tmp_path / "runs", tmp_path / "repo")
    lengths = {one.name.partition(" ")[0]: len(one.points) for one in read.series if one.name.startswith("compile_s")}
    assert lengths == {"compile_s[cache=cold]": 6, "compile_s[cache=warm]": 2}
    assert check(read, LIMITS, ASV, date(2026, 11, 8)).findings == ()


def test_an_eager_size_has_its_copies_in_the_history() -> None:
    costs = {"segments": 0, "copies": {"staging": {"count": 7, "bytes": 340}}}
    record = lane([1000.0], counters={"per_bucket": {"eager 5": costs}})
    values = {figure.label.partition(" ")[0]: figure.value for figure in figures_of(record) if figure.batch == 5}
    assert values["copied_bytes_per_step[batch=5]"] == 340.0
    assert values["segments_per_step[batch=5]"] == 0.0


def asv_file(folder: Path, commit: str, day: int, result: Any, columns: Sequence[str] = ("result", "params")) -> None:
    machine = folder / "laptop"
    machine.mkdir(parents=True, exist_ok=True)
    data = {
        "version": 2,
        "commit_hash": commit,
        "env_name": "existing-py",
        "date": int((FIRST_NIGHT + timedelta(days=day)).timestamp() * 1000),
        "params": {"machine": "laptop"},
        "python": "3.11",
        "requirements": {},
        "env_vars": {},
        "result_columns": list(columns),
        "results": {"decode.track_us": [result, [["0", "3"], ["'FULL'"]]]},
    }
    (machine / f"{commit}-existing-py.json").write_text(json.dumps(data))


def test_asv_results_are_read_with_their_holes(tmp_path: Path) -> None:
    asv_file(tmp_path, "b" * 8, 1, [11.0, None])
    asv_file(tmp_path, "a" * 8, 0, [10.0, math.inf])
    (tmp_path / "laptop" / "machine.json").write_text("{}")
    (tmp_path / "laptop" / "cut.json").write_text('{"version": 2, ')
    read = history_of_asv(tmp_path)
    found = {one.name: [point.value for point in one.points] for one in read.series}
    assert found == {"decode.track_us(0, 'FULL')": [10.0, 11.0], "decode.track_us(3, 'FULL')": [None, None]}
    assert len(read.unreadable) == 1
    assert "cut.json" in read.unreadable[0]


def test_a_missing_folder_of_asv_results_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="make bench"):
        history_of_asv(tmp_path / "none")
