"""Guards against a kept record that nobody can place: of which machine, which code and which command it was.

A figure was quoted for months from a file that held only the figure. And a record that names a folder of the machine it
came from cannot be made again by anyone else.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.records import Fate
from harness.store import RECORDS, load_run

KEPT = Path(__file__).resolve().parents[2] / "results" / "records"
FILES = sorted(path for path in KEPT.rglob("*") if path.is_file())
RUNS = [path for path in FILES if path.name == RECORDS]
MOST_BYTES = 1 << 20
#: Folders that belong to a person or a machine; /dev and /proc are the same everywhere.
_MACHINE_PATH = re.compile(r"(?<![\w.~])/(?:home|root|tmp|opt|mnt|work|workspace|users?|var|data|scratch)/\S*", re.I)


def name_of(path: Path) -> str:
    return path.relative_to(KEPT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_kept_file_is_small_and_names_no_folder_of_a_machine(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    found = _MACHINE_PATH.search(path.read_text(encoding="utf-8"))
    assert found is None, f"{name_of(path)} names {found.group()}" if found else ""


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_a_kept_run_says_machine_commit_and_command_and_is_whole(path: Path) -> None:
    run = load_run(path)
    assert run.damaged_lines == 0
    assert run.header.command[0] == "harness"
    assert re.fullmatch(r"[0-9a-f]{40}", run.header.harness_revision["commit"])
    if run.header.engine_revision["dirty"] != "no":  # a tree that came without its commit is told by its sources
        described = (KEPT.parent / "README.md").read_text(encoding="utf-8")
        assert f"`sources` {run.header.engine_revision['sources']}" in described
    assert run.header.fingerprint["software"]["torch"] != "unknown"
    assert run.header.device == "cpu" or run.header.fingerprint["gpus"]
    assert run.verdict is not None
    assert run.verdict.expected == run.verdict.executed == run.verdict.stored == run.verdict.reported
    assert run.verdict.exit_code != 0 or all(lane.fate is Fate.MEASURED for lane in run.lanes)


def test_every_kept_record_is_described() -> None:
    described = (KEPT.parent / "README.md").read_text(encoding="utf-8")
    named = {name_of(path.parent if path.parent.parent != KEPT else path) for path in FILES}
    assert [name for name in sorted(named) if f"`{name}" not in described] == []


def test_a_folder_of_a_machine_is_seen() -> None:
    assert _MACHINE_PATH.search('"command":["harness","--results","/home/someone/results"]')
    assert _MACHINE_PATH.search("/dev/nvidia0 and results/runs/x and ~/tmp/cache") is None
