"""asv's own environments rebuild everything for each commit, and a checkout of all of it measures with old code.

A small repository of six commits stands in: its engine says a number, its harness says whether it can drive the engine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.history.series import commit_times, history_of_asv
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
        root = pathlib.Path(os.environ["PERFORMANCE_ROOT"])
        assert "running" in (root / "harness" / "cells.py").read_text()
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


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commit 0 has no engine, commit 1 one without the interface, commits 2 to 6 say 20 to 60."""
    root = tmp_path_factory.mktemp("small")
    write(root / "asv.conf.json", json.dumps(CONF))
    write(root / "suites" / "__init__.py", "")
    write(root / "suites" / "rows.py", ROW)
    write(root / "harness" / "__init__.py", "")  # else a checkout on the path, as a regular package, comes first
    write(root / "harness" / "cells.py", "class Cell:\n    of = staticmethod(lambda: None)  # old\n")
    write(root / "harness" / "plugins.py", PLUGINS)
    write(root / "tools" / "__init__.py", "")
    shutil.copy(CHECKOUT / "tools" / "asv_engine.py", root / "tools")
    git(root, "init", "--quiet")
    for number in range(7):
        if number:
            write(root / "atom_impl" / "__init__.py", ENGINE if number > 1 else "")
            write(root / "atom_impl" / "number", str(10 * number))
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--allow-empty", "-m", f"commit {number}")
    write(root / "harness" / "cells.py", "class Cell:\n    of = staticmethod(lambda: None)  # running\n")
    return root


def asv(root: Path, *arguments: str) -> tuple[int, str]:
    home = root.parent / f"{root.name}-home"
    home.mkdir(exist_ok=True)
    env = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
    if not (home / ".asv-machine.json").exists():
        subprocess.run([sys.executable, "-m", "asv", "machine", "--yes"], cwd=root, env=env, capture_output=True)
    command = [sys.executable, "-m", "asv", *arguments]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def test_a_range_measures_each_commits_engine_with_the_running_harness(repository: Path) -> None:
    first = git(repository, "rev-list", "--max-parents=0", "HEAD").strip()
    _, out = asv(repository, "run", f"{first}..HEAD", "--show-stderr")
    (series,) = history_of_asv(repository / "results" / "asv", commit_times(repository)).series
    assert [point.value for point in series.points if point.value is not None] == [20, 30, 40, 50, 60], out
    assert "unsupported: the engine of" in out
    assert "has no attribute 'Engine'" in out


def test_two_commits_can_be_held_against_each_other(repository: Path) -> None:
    code, out = asv(repository, "continuous", "--interleave-rounds", "HEAD~3", "HEAD", "-f", "1.05")
    assert code == 1, out
    assert "30" in out
    assert "60" in out


def test_a_commit_without_an_engine_is_unsupported_and_said_so(repository: Path) -> None:
    first = git(repository, "rev-list", "--max-parents=0", "HEAD").strip()
    _, out = asv(repository, "run", f"{first}^!", "--show-stderr")
    assert "it has no atom_impl/" in out


def test_another_python_than_the_one_at_hand_is_refused(repository: Path) -> None:
    code, out = asv(repository, "run", "-E", "engine:2.7", "HEAD^!")
    assert code != 0
    assert "runs in the one at hand" in out
