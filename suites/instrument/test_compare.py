"""Two revisions timed one after the other compared two rooms' temperatures, and an old harness beside a new one
compared two clocks. Here the truth is planted: a repository of revisions whose steps take exactly as long as they say.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.comparison.pairs import abba, log_ratio, spoilt
from harness.comparison.settling import MOST_BLOCKS, settle
from harness.comparison.sides import AS_IT_STANDS, make_side, same_code, what_changed
from harness.errors import UsageError
from harness.records import Fate
from harness.store import RunData, list_runs, load_run
from suites.instrument.spine import CHECKOUT, HERE, fake_environment, harness, start, write_profile

REVISIONS = {
    "base": 'STEP_US, ARTEFACT, FAULT = 400.0, "a", ""\n',
    "slow": 'STEP_US, ARTEFACT, FAULT = 600.0, "a", ""\n',
    "raises": 'STEP_US, ARTEFACT, FAULT = 400.0, "a", "raise"\n',
    "old": "VERSION = 0\n",
    "empty": "",
}


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness of this checkout, over an engine that is a tag of REVISIONS; its working tree is `base` again."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(CHECKOUT / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "--quiet")
    for tag, text in [*REVISIONS.items(), ("head", REVISIONS["base"])]:
        engine = folder / "atom_impl"
        shutil.rmtree(engine, ignore_errors=True)
        if text:
            engine.mkdir()
            (engine / "__init__.py").write_text(text)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", tag)
        git(folder, "tag", tag)
    return folder


def compare(repository: Path, folder: Path, *arguments: str, command: str = "compare") -> tuple[int, str, RunData]:
    """One command over one cell with buckets 1 and 2: exit code, output, and the run that it left."""
    options, env = paced(repository, folder)
    code, out, err = harness(command, *arguments, *options, cwd=folder, env=env, timeout_s=850)
    runs = list_runs(folder / "results" / "runs")
    assert runs, err
    return code, f"{' '.join(out.split())}\n{err}", load_run(runs[0])


def paced(repository: Path, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Options and environment of a command on the paced engine."""
    profile = write_profile(folder, engine='["paced"]', level="[0]", mode='["FULL"]')
    settings = "\n[timing]\nwarmup_steps = 1\n[comparison]\npairs = [5, 6]\nquads = 2\nblock_steps = 7\n"
    profile.write_text(profile.read_text() + settings)
    env = fake_environment(checkout=repository) | {"HARNESS_ENGINES": "paced=paced_engine:PacedEngine"}
    env["PYTHONPATH"] = os.pathsep.join([str(repository), str(HERE)])
    options = ["--profile", str(profile), "--device", "cpu", "--results", str(folder / "results")]
    return options, env


@pytest.mark.timeout(400)
def test_a_comparison_that_is_killed_is_resumed_by_the_same_command(repository: Path, tmp_path: Path) -> None:
    sides = ("--baseline", "base", "--candidate", "head")
    options, env = paced(repository, tmp_path)
    process = start("compare", *sides, *options, cwd=tmp_path, env=env)
    while not (runs := list_runs(tmp_path / "results" / "runs")) or len(load_run(runs[0]).pairs) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    before = load_run(runs[0])
    assert before.verdict is None
    code, out, run = compare(repository, tmp_path, *sides)
    assert "resuming" in out, out
    assert run.header.run == before.header.run
    assert run.pairs[: len(before.pairs)] == before.pairs
    assert run.verdict is not None
    assert code in (0, 3), out
    assert len(run.lanes) == 1


def fate(run: RunData) -> Fate:
    assert run.verdict is not None
    (cell,) = run.verdict.cells
    return cell.fate


@pytest.mark.parametrize(("revision", "reason"), [("old", "AttributeError"), ("empty", "has no atom_impl/")])
def test_a_revision_too_old_for_the_interface_is_unsupported_and_no_pass(
    repository: Path, tmp_path: Path, revision: str, reason: str
) -> None:
    code, out, run = compare(repository, tmp_path, "--baseline", revision, "--candidate", ".")
    assert (code, fate(run)) == (3, Fate.UNSUPPORTED), out
    assert run.verdict is not None
    assert reason in run.verdict.cells[0].reason
    assert any("1 cells were not compared" in text for text in run.verdict.reasons)


def test_a_side_that_raises_is_a_crashed_cell_that_names_the_side(repository: Path, tmp_path: Path) -> None:
    code, out, run = compare(repository, tmp_path, "--baseline", "base", "--candidate", "raises")
    assert (code, fate(run)) == (1, Fate.CRASHED), out
    assert "candidate raises" in run.lanes[0].reason
    assert "operation not permitted" in run.lanes[0].reason


def test_a_sign_off_measures_the_candidates_engine_and_says_what_it_could_not_compare(
    repository: Path, tmp_path: Path
) -> None:
    arguments = ("--baseline", "old", "--candidate", "slow", "--no-baseline")
    code, out, run = compare(repository, tmp_path, *arguments, command="signoff")
    assert (code, fate(run)) == (3, Fate.INCONCLUSIVE), out
    assert "baseline old" in run.lanes[0].reason
    assert [gate.gate for gate in run.lanes[0].gates] == ["G1"]
    assert run.header.sides["candidate"]["commit"] == git(repository, "rev-parse", "slow")
    code, out, _ = compare(repository, tmp_path, *arguments[:3], "raises", command="signoff")
    assert (code, "1 crashed" in out) == (1, True), out


def test_a_worktree_is_used_again_and_repaired_when_somebody_edited_it(repository: Path, tmp_path: Path) -> None:
    first = make_side("baseline", "base", None, repository, tmp_path)
    module = first.root / "atom_impl" / "__init__.py"
    born = module.stat().st_mtime_ns
    assert make_side("baseline", "base", None, repository, tmp_path) == first
    assert module.stat().st_mtime_ns == born
    module.write_text("STEP_US = 1.0\n")
    assert make_side("baseline", "base", None, repository, tmp_path).code == first.code
    shutil.rmtree(first.root)
    assert make_side("baseline", "base", None, repository, tmp_path) == first
    assert [path.name for path in first.root.iterdir() if path.name != ".git"] == ["atom_impl"]


def test_two_names_of_one_code_are_the_same_code(repository: Path, tmp_path: Path) -> None:
    base, head, slow, here = (
        make_side("x", name, None, repository, tmp_path) for name in ("base", "head", "slow", ".")
    )
    assert base.commit != head.commit
    assert same_code(base, head)
    assert same_code(base, here)
    assert not same_code(base, slow)
    assert here.revision == AS_IT_STANDS


@pytest.mark.parametrize("name", ["no-such-revision", "--help", ""])
def test_a_revision_that_does_not_exist_is_a_usage_error(repository: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="git rev-parse"):
        make_side("baseline", name, None, repository, tmp_path)


def test_an_interpreter_that_does_not_exist_is_a_usage_error(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--candidate-python"):
        make_side("candidate", "base", "no-such-python", repository, tmp_path)
    assert make_side("candidate", "base", sys.executable, repository, tmp_path).python == sys.executable


def test_a_drift_that_is_a_line_over_a_quad_cancels() -> None:
    order = abba(6, "seed")
    drifting = [[100.0 * 1.01**position] for position in range(len(order))]
    assert log_ratio(order, drifting) == pytest.approx(0.0, abs=1e-12)


@given(st.floats(0.5, 2.0), st.lists(st.floats(50, 500), min_size=8, max_size=8))
def test_the_ratio_of_a_factor_is_its_logarithm(factor: float, quads: list[float]) -> None:
    order = abba(len(quads), "seed")
    flat = [[quads[i // 4] * (factor if key == "B" else 1)] * 3 for i, key in enumerate(order)]
    assert log_ratio(order, flat) == pytest.approx(math.log(factor), abs=1e-9)


def test_a_quad_in_which_something_else_ran_does_not_move_the_ratio() -> None:
    """Three blocks of 1600 us beside 750 made identical code 20 % faster."""
    order = list("ABBA") * 8
    blocks = [[750.0]] * len(order)
    for index in (0, 3, 4):
        blocks[index] = [1600.0]
    assert log_ratio(order, blocks) == pytest.approx(0.0, abs=1e-12)


def test_half_a_pairs_blocks_on_a_shared_core_spoil_their_quads_and_not_the_ratio() -> None:
    """One pair of eighteen had four blocks of 5700 us among 2800, and the interval grew to three times its width."""
    order = list("ABBA") * 4
    blocks = [[2800.0 if key == "A" else 3080.0] for key in order]
    for index in (7, 8, 11):
        blocks[index] = [5700.0]
    assert spoilt(order, blocks) == [1, 2]
    assert log_ratio(order, blocks) == pytest.approx(math.log(1.1), abs=1e-12)


@given(st.floats(1.0, 3.0))
def test_a_slower_side_spoils_no_quad(factor: float) -> None:
    order = abba(8, "seed")
    assert spoilt(order, [[700.0 * (factor if key == "B" else 1)] for key in order]) == []


def test_the_warm_up_ends_once_a_step_gets_no_faster_and_in_any_case() -> None:
    falling = iter([[2000.0], [900.0], [800.0], [760.0], [750.0], [751.0], [749.0], [752.0]])
    assert settle(lambda: next(falling)) == 7
    ever = iter(range(1000, 0, -30))
    assert settle(lambda: [float(next(ever))]) == MOST_BLOCKS


def test_each_quad_holds_both_sides_twice_and_both_orders_occur() -> None:
    order = "".join(abba(20, "seed"))
    quads = {order[i : i + 4] for i in range(0, len(order), 4)}
    assert quads == {"ABBA", "BAAB"}
    assert abba(20, "seed") == list(order)


@pytest.mark.parametrize("bad", [[], [float("nan")], [0.0]])
def test_a_block_that_is_no_measurement_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"block|quads"):
        log_ratio(list("ABBA"), [[1.0], bad, [1.0], [1.0]])


def test_an_artefact_that_one_side_lacks_has_changed() -> None:
    assert what_changed({"a": "1", "b": "2"}, {"a": "1", "c": "3"}) == ["b", "c"]
