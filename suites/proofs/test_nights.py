"""A nightly that was only tried on made-up numbers is untried: real noise is correlated within a process, and differs
from one process to the next.

So here nights are real: the engine, its worker processes and the machine's own noise, with more Python planted in each
step of one commit of six, and with nothing planted at all for twenty nights.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suites.proofs.branch import Branch, make_branch

NIGHTS = 20


@pytest.fixture(scope="module")
def branch(tmp_path_factory: pytest.TempPathFactory, device: str) -> Branch:
    return make_branch(tmp_path_factory.mktemp("planted"), device, 6, slow_at=3)


@pytest.mark.timeout(1200)  # six nights of fresh processes, a measurement before them, a bisect of minutes
def test_a_tenth_planted_in_one_of_six_commits_is_named_by_the_nightly(branch: Branch) -> None:
    nights = [branch.night(commit) for commit in branch.commits]
    assert nights[0][0] == 0, f"a first night has nothing to look back on:\n{nights[0][1]}"
    code, out = nights[-1]
    assert code == 1, out
    assert f"REGRESSION at {branch.slow[:12]}" in out
    named = [line for line in out.splitlines() if line.startswith(("REGRESSION", "DRIFT"))]
    assert len(named) == 1, "and no other commit is"


@pytest.mark.timeout(1800)  # three or four comparisons of five fresh pairs and more
def test_the_same_commit_is_named_by_a_bisect_of_paired_runs(branch: Branch) -> None:
    code, out = branch.run("bisect", branch.commits[0], branch.commits[-1], "--perf", timeout_s=1700)
    assert code == 1, out
    assert out.rstrip().endswith(f"first bad commit: {branch.slow}"), out


@pytest.mark.timeout(1800)  # twenty nights, of some ten seconds each
def test_twenty_nights_of_identical_code_raise_nothing(tmp_path: Path, device: str) -> None:
    same = make_branch(tmp_path, device, 1)
    codes, told = [], []
    for _ in range(NIGHTS):
        code, out = same.night(same.commits[0])
        codes.append(code)
        told += [line for line in out.splitlines() if line.startswith(("REGRESSION", "DRIFT", "SUSPECT", "NO FIGURE"))]
    assert told == []
    assert codes == [0] * NIGHTS
