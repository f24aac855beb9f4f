"""asv's own environments rebuild everything for each commit, and a checkout of all of it measures with old code.

A small repository of seven commits stands in: its engine says a number, and the harness, but for the way to an engine,
is this one.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.history.series import commit_times, history_of_asv
from harness.revision import CARRIED, engine_and_harness
from suites.instrument.spine import CHECKOUT

CONF = {
    "version": 1,
    "project": "small",
    "repo": ".",
    "branches": ["main"],
    "plugins": [".tools.asv_engine"],
    "environment_type": "engine",
    "benchmark_dir": "suites",
    "results_dir": "results/asv",
    "env_dir": ".asv/env",
    "html_dir": ".asv/html",
}
ROW = """
import os, pathlib
class Engine:
    unit = "count"
    version = "1"
    def track_number(self):
        root = pathlib.Path(os.environ.get("PERFORMANCE_ROOT", "{root}"))
        assert "# running" in (root / "harness" / "cells.py").read_text()
        return float((root / "atom_impl" / "number").read_text())
"""
PLUGINS = """
def find_engine(name):
    import atom_impl
    return atom_impl.Engine()
"""
ENGINE = """
class Engine:
    def versions(self): return {}
    def supports(self, cell): return True
"""


#: What the engine of each commit says: commit 0 has none, commit 1 one without the interface.
NUMBERS = [0, 10, 20, 21, 22, 60, 61]


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    shutil.copytree(CHECKOUT / "harness", root / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    write(root / "asv.conf.json", json.dumps(CONF))
    write(root / "suites" / "__init__.py", "")
    write(root / "suites" / "rows.py", ROW.replace("{root}", str(root)))
    write(root / "harness" / "plugins.py", PLUGINS)
    write(root / "tools" / "__init__.py", "")
    for name in ("asv_engine.py", "commits.py"):
        shutil.copy(CHECKOUT / "tools" / name, root / "tools")
    git(root, "init", "--quiet")
    for index, number in enumerate(NUMBERS):
        if number:
            write(root / "atom_impl" / "__init__.py", ENGINE if index > 1 else "")
            write(root / "atom_impl" / "number", str(number))
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--allow-empty", "-m", f"commit {index}")
    with (root / "harness" / "cells.py").open("a") as cells:
        cells.write("# running\n")
    return root


def asv(root: Path, *arguments: str) -> tuple[int, str]:
    home = root.parent / f"{root.name}-home"
    home.mkdir(exist_ok=True)
    env = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "asv", *arguments]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def test_a_range_measures_each_commits_engine_with_the_running_harness(repository: Path) -> None:
    first = git(repository, "rev-list", "--max-parents=0", "HEAD").strip()
    _, out = asv(repository, "run", f"{first}..HEAD", "--show-stderr")
    (series,) = history_of_asv(repository / "results" / "asv", commit_times(repository)).series
    assert [point.value for point in series.points if point.value is not None] == NUMBERS[2:], out
    assert "unsupported: the engine of" in out
    assert "has no attribute 'Engine'" in out


def test_two_commits_can_be_held_against_each_other(repository: Path) -> None:
    code, out = asv(repository, "continuous", "--interleave-rounds", "HEAD~3", "HEAD", "-f", "1.05")
    assert code == 1, out
    assert "21" in out
    assert "61" in out


def test_the_commit_of_the_greatest_step_is_found(repository: Path) -> None:
    code, out = asv(repository, "find", "HEAD~4..HEAD", "rows.Engine.track_number")
    assert code == 0, out
    assert git(repository, "rev-parse", "HEAD~1").strip()[:8] in out.rpartition("Greatest regression found")[2], out


def test_a_search_that_meets_an_unsupported_commit_ends_and_says_so(repository: Path) -> None:
    first = git(repository, "rev-list", "--max-parents=0", "HEAD").strip()
    code, out = asv(repository, "find", f"{first}..HEAD", "rows.Engine.track_number")
    assert code != 0
    assert "unsupported: the engine of" in out


def test_results_name_the_hardware_and_the_versions_and_neither_host_nor_folder(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD").strip()
    code, out = asv(repository, "run", "--python=same", "--set-commit-hash", head, "--show-stderr")
    assert code == 0, out
    (written,) = (repository / "results" / "asv").glob(f"*/{head[:8]}-existing-*.json")
    assert written.name.startswith(f"{head[:8]}-existing-py{sys.version_info[0]}.{sys.version_info[1]}-torch")
    described = json.loads((written.parent / "machine.json").read_text())
    assert {"machine", "cpu", "gpu", "os", "ram", "arch", "num_cpu", "series"} <= set(described)
    assert described["machine"] == written.parent.name != platform.node()
    for path in (written, written.parent / "machine.json"):
        for private in (sys.executable, sys.prefix, platform.node(), str(Path.home())):
            assert f'"{private}' not in path.read_text()


def test_a_name_that_is_given_gets_the_whole_description(repository: Path) -> None:
    asv(repository, "machine", "--yes", "--machine", "mi355x-node01")
    known = json.loads((repository.parent / f"{repository.name}-home" / ".asv-machine.json").read_text())
    assert {"cpu", "gpu", "os", "ram", "arch", "num_cpu", "series"} <= set(known["mi355x-node01"])


def test_what_a_commits_folder_holds_says_which_engine_and_which_harness_it_is(repository: Path) -> None:
    asv(repository, "run", "HEAD^!")
    (carried,) = (repository / ".asv" / "env").rglob(CARRIED)
    facts = json.loads(carried.read_text())
    assert facts["engine"]["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert facts["harness"]["dirty"] == "yes", "the running harness holds an edit of its own"


def test_a_commit_without_an_engine_is_unsupported_and_said_so(repository: Path) -> None:
    first = git(repository, "rev-list", "--max-parents=0", "HEAD").strip()
    _, out = asv(repository, "run", f"{first}^!", "--show-stderr")
    assert "it has no atom_impl/" in out


def test_another_python_than_the_one_at_hand_is_refused(repository: Path) -> None:
    code, out = asv(repository, "run", "-E", "engine:2.7", "HEAD^!")
    assert code != 0
    assert "runs in the one at hand" in out


def test_engines_of_commits_are_laid_out_for_a_machine_without_git(repository: Path, tmp_path: Path) -> None:
    names = ["HEAD~1", "HEAD~5", "HEAD~6"]
    command = [sys.executable, "-m", "tools.commits", str(tmp_path / "laid"), *names]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "HEAD~5: unsupported" in done.stdout
    assert "HEAD~6: unsupported: it has no atom_impl/" in done.stdout
    (root,) = (tmp_path / "laid").iterdir()
    assert (root / "atom_impl" / "number").read_text() == "60"
    assert "# running" in (root / "harness" / "cells.py").read_text()
    assert engine_and_harness(root, "atom_impl")[0]["commit"] == git(repository, "rev-parse", "HEAD~1").strip()
    command[-3:] = ["no-such-commit"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "no-such-commit" in done.stderr
