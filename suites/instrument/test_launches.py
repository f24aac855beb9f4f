"""A replay that was wrong in one process out of five passed every night: each cell was launched once, and four times
in five that launch was a good one. A cell is launched as often as its profile says, and says what that bounds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.filters import Filters, narrow
from harness.plan import batches, in_seeded_order, make_plan
from harness.profile import MODES, Profile
from harness.profiles import load_profile
from harness.records import Fate
from harness.report.view import cell_views
from harness.store import RunData, list_runs, load_run, unit_id
from harness.verdicts import conclude
from suites.instrument.fake_engine import FakeEngine
from suites.instrument.spine import fake_environment, fake_profile, harness, write_profile

LAUNCHES = 3


def launched_profile(folder: Path, **replacements: str) -> Path:
    path = write_profile(folder, level="[3]", **replacements)
    path.write_text(f'launches = {LAUNCHES}\nisolation = "cell"\n{path.read_text()}')
    return path


def test_release_is_four_levels_by_five_modes_launched_sixty_times() -> None:
    profile = load_profile("release")
    assert (profile.axes.level, profile.axes.mode) == ([0, 1, 2, 3], list(MODES))
    assert (profile.launches, profile.isolation, profile.baseline_required) == (60, "cell", True)


@pytest.mark.parametrize("name", ["real", "release"])
def test_the_profiles_for_gpus_leave_no_size_without_a_bucket_or_a_policy(name: str) -> None:
    profile = load_profile(name)
    assert not make_plan(fake(profile), "cuda", lambda engine: FakeEngine()).holes
    assert max(profile.axes.ladder[0]) + 1 == profile.limits.max_num_seqs


def test_only_the_serving_lane_is_launched_again() -> None:
    plan = make_plan(fake(load_profile("release")), "cpu", lambda engine: FakeEngine())
    decode = [unit for unit in plan.units if unit.cell["workload"] == "decode"]
    assert len({unit.id for unit in decode}) == len(decode) == 20 * (60 + 1)
    assert {unit.launch for unit in decode if unit.lane == "float32"} == {0}


def test_every_group_is_launched_once_before_any_is_launched_again_in_an_order_drawn_from_the_seed(
    tmp_path: Path,
) -> None:
    profile = load_profile(str(launched_profile(tmp_path, mode='["NONE", "FULL", "TR_HYBRID"]')))
    groups = batches(make_plan(profile, "cpu", lambda engine: FakeEngine()).units, profile.isolation)
    first, same, other = (in_seeded_order(groups, seed) for seed in (1, 1, 2))
    assert first == same != other
    assert [group[0].launch for group in first] == [launch for launch in range(LAUNCHES) for _ in range(3)]


def test_units_of_one_worker_are_of_one_launch(tmp_path: Path) -> None:
    path = launched_profile(tmp_path)
    path.write_text(path.read_text().replace('isolation = "cell"', 'isolation = "level"'))
    plan = make_plan(load_profile(str(path)), "cpu", lambda engine: FakeEngine())
    for group in batches(plan.units, "level"):
        assert len({unit.launch for unit in group}) == 1
        assert len(group) == 2


def test_a_cell_that_is_wrong_in_one_launch_of_three_is_wrong_and_says_in_how_many(tmp_path: Path) -> None:
    env = fake_environment({"mode=FULL": "wrong in every third launch"}, tmp_path / "journal")
    code, out, err = harness(
        "signoff", "--profile", str(launched_profile(tmp_path)), cwd=tmp_path, env=env, timeout_s=280
    )
    assert code == 1, out + err
    run = load_run(list_runs(tmp_path / "results" / "runs")[0])
    assert run.verdict is not None
    good, bad = run.verdict.cells
    assert (good.fate, good.launches, good.bad_launches) == (Fate.MEASURED, LAUNCHES, 0)
    assert "bad launches: 0 of 3 (95 % bounds 0.0 to 63.2 %)" in good.reason
    assert (bad.fate, bad.launches, bad.bad_launches) == (Fate.WRONG, LAUNCHES, 1)
    assert "launch 2" in bad.reason
    assert "1 of 3" in bad.reason
    verdict = run.verdict
    assert verdict.expected == verdict.executed == verdict.stored == verdict.reported == 2 * LAUNCHES
    assert {unit_id(lane.cell, lane.lane, lane.launch) for lane in run.lanes} == set(run.header.units)
    shown = {lane.lane for cell in cell_views(run) for lane in cell.lanes}
    assert shown == {"serving", "serving, launch 2"}


def test_launches_without_a_bad_one_are_said_with_their_bound_and_a_lost_one_is_missed(tmp_path: Path) -> None:
    path = launched_profile(tmp_path, mode='["FULL"]')
    code, out, err = harness("signoff", "--profile", str(path), cwd=tmp_path, env=fake_environment(), timeout_s=240)
    assert code == 0, out + err
    said = " ".join(out.split())
    assert "afresh 3 times and no launch was bad: at 95 % that bounds bad launches below 63.2 %" in said
    run = load_run(list_runs(tmp_path / "results" / "runs")[0])
    short = RunData(run.header, [lane for lane in run.lanes if lane.launch != 1])
    (cell,) = conclude(short, executed=LAUNCHES, finished="", seconds=0.0).cells
    assert cell.fate is Fate.NOT_RUN
    assert "serving/1" in cell.reason


def test_the_list_of_cells_says_how_often_each_is_launched(tmp_path: Path) -> None:
    path = launched_profile(tmp_path, mode='["FULL"]')
    _, listed, _ = harness("cells", "--profile", str(path), cwd=tmp_path, env=fake_environment())
    assert "3 x serving (bfloat16)" in listed
    assert "bounds bad launches below 63.2 %" in listed


def test_launches_below_one_are_refused(tmp_path: Path) -> None:
    path = write_profile(tmp_path)
    path.write_text(f"launches = 0\n{path.read_text()}")
    with pytest.raises(Exception, match="launches = 0: must be at least 1"):
        load_profile(str(path))
    assert fake_profile(tmp_path).launches == 1


def fake(profile: Profile) -> Profile:
    return narrow(profile, Filters(engine=["fake"], model=["fake-model"]))
