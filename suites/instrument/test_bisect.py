"""A bisect that trusts one timing names whichever commit was measured in a slow hour.

What walks the commits is tried on judges that say good, bad or nothing; the paired comparison has its own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from harness.bisect import Outcome, State, commits_between, first_bad, lines, outcome_of
from harness.errors import FAILED, INCOMPLETE, IncompleteError, UsageError
from harness.records import CellVerdict, Fate
from harness.store import RunData
from suites.instrument.spine import fake_environment, harness
from suites.instrument.stored_nights import lane, make_commits, store

COMMITS = [f"c{number}" for number in range(9)]


def judge_of(bad: int, unknown: Sequence[int] = (), asked: list[str] | None = None) -> Callable[[str], Outcome]:
    def judge(commit: str) -> Outcome:
        if asked is not None:
            asked.append(commit)
        index = COMMITS.index(commit)
        state = State.UNKNOWN if index in unknown else State.BAD if index >= bad else State.GOOD
        return Outcome(commit, state, "because")

    return judge


@pytest.mark.parametrize("bad", range(9))
def test_the_first_bad_commit_is_found_wherever_it_is(bad: int) -> None:
    asked: list[str] = []
    found = first_bad(COMMITS, judge_of(bad, asked=asked))
    assert found.suspects == (COMMITS[bad],)
    assert len(asked) == len(set(asked)) <= 5, "halving nine takes the end and four more"


@pytest.mark.parametrize("bad", range(1, 9))
def test_a_commit_that_cannot_be_judged_is_gone_round_or_named_with_the_rest(bad: int) -> None:
    unknown = [4] if bad != 8 else [7]
    found = first_bad(COMMITS, judge_of(bad, unknown))
    assert COMMITS[max(bad, 5) if bad == 4 else bad] in found.suspects
    code, text = lines(found)
    if len(found.suspects) == 1:
        assert (code, text[-1]) == (FAILED, f"first bad commit: {found.suspects[0]}")
    else:
        assert set(found.suspects) - {found.suspects[-1]} <= {COMMITS[index] for index in unknown}
        assert code == INCOMPLETE
        assert "is one of" in text[-1]


@pytest.mark.parametrize(("unknown", "state"), [((), "good"), ((8,), "unknown")])
def test_a_bad_end_that_is_not_bad_ends_the_search(unknown: tuple[int, ...], state: str) -> None:
    with pytest.raises(IncompleteError, match=f"the bad end c8 is {state}"):
        first_bad(COMMITS, judge_of(99, unknown))


def compared(results: Path, fate: Fate, code: int) -> RunData:
    run = store(results, "c" * 40, 0, lane([1.0]), code=code)
    assert run.verdict is not None
    cells = [CellVerdict(cell="level=3", fate=fate, reason="+10 % over 5 pairs")]
    return RunData(run.header, run.lanes, msgspec.structs.replace(run.verdict, cells=cells, reasons=["too old"]))


@pytest.mark.parametrize(
    ("fate", "code", "state"),
    [
        (Fate.MEASURED, 0, State.GOOD),
        (Fate.FASTER, 3, State.GOOD),
        (Fate.SLOWER, 1, State.BAD),
        (Fate.INCONCLUSIVE, 3, State.UNKNOWN),
        (Fate.UNSUPPORTED, 3, State.UNKNOWN),
        (Fate.CRASHED, 1, State.UNKNOWN),
    ],
)
def test_only_slower_is_bad_and_only_measured_or_faster_is_good(
    fate: Fate, code: int, state: State, tmp_path: Path
) -> None:
    outcome = outcome_of("c" * 40, compared(tmp_path, fate, code))
    assert outcome.state is state
    assert outcome.reason


def test_commits_are_those_after_the_good_one_oldest_first(tmp_path: Path) -> None:
    commits = make_commits(tmp_path, 5)
    assert commits_between(tmp_path, commits[1], "HEAD") == commits[2:]


def test_a_good_end_that_is_no_ancestor_and_a_name_that_is_none_are_refused(tmp_path: Path) -> None:
    commits = make_commits(tmp_path, 3)
    with pytest.raises(UsageError, match="is not before"):
        commits_between(tmp_path, commits[2], commits[0])
    with pytest.raises(UsageError, match="no such commit"):
        commits_between(tmp_path, "no-such-name", "HEAD")


def test_the_command_refuses_a_commit_that_is_none(tmp_path: Path) -> None:
    code, _, err = harness("bisect", "no-such-name", "--perf", cwd=tmp_path, env=fake_environment())
    assert code == 2
    assert "no such commit" in err
