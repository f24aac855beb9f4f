"""A bisect that trusts one timing names whichever commit was measured in a slow hour.

What walks the commits is tried on judges that say good, bad or nothing; the paired comparison has its own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from harness.bisect import Outcome, State, commits_between, first_bad, intervals, lines, outcome_of, without_the_step
from harness.errors import FAILED, INCOMPLETE, IncompleteError, UsageError
from harness.records import CellVerdict, Fate, GateResult, Status
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


def inconclusive(results: Path, high: float, fate: Fate = Fate.INCONCLUSIVE, status: str = "inconclusive") -> RunData:
    run = compared(results, fate, 3)
    gate = GateResult(
        gate="latency.compare.2", status=Status(status), message="-", evidence={"low": -0.02, "high": high}
    )
    return RunData(run.header, [msgspec.structs.replace(run.lanes[0], gates=[gate])], run.verdict)


SOUGHT = {"level=3,mode=FULL,ladder=1-2-4 latency.compare.2": (0.08, 0.17)}


@pytest.mark.parametrize(
    ("high", "sought", "state"),
    [
        (0.03, SOUGHT, State.GOOD),
        (0.09, SOUGHT, State.UNKNOWN),
        (0.03, {}, State.UNKNOWN),
        (0.03, {**SOUGHT, "another latency.compare.1": (0.5, 0.6)}, State.UNKNOWN),
    ],
    ids=["excluded", "not excluded", "nothing sought", "one item not measured"],
)
def test_a_commit_that_straddles_the_budget_is_good_where_the_step_that_is_sought_is_out_of_the_question(
    high: float, sought: dict[str, tuple[float, float]], state: State, tmp_path: Path
) -> None:
    """A bisect for 12 % ended between two commits, since 3 % could not be excluded in one that was within 0.3 %."""
    run = inconclusive(tmp_path, high)
    outcome = without_the_step(outcome_of("c" * 40, run), run, sought)
    assert outcome.state is state
    assert ("at most +3.05 %" in outcome.reason) is (state is State.GOOD)


def test_a_commit_that_crashed_is_not_good_because_its_step_is_small(tmp_path: Path) -> None:
    run = inconclusive(tmp_path, 0.0, fate=Fate.CRASHED)
    assert without_the_step(outcome_of("c" * 40, run), run, SOUGHT).state is State.UNKNOWN


def test_what_is_sought_is_what_the_bad_end_failed_in(tmp_path: Path) -> None:
    assert intervals(inconclusive(tmp_path / "a", 0.1), Status.FAIL) == {}
    failed = inconclusive(tmp_path / "b", 0.1, Fate.SLOWER, "fail")
    assert intervals(failed, Status.FAIL) == {next(iter(SOUGHT)): (-0.02, 0.1)}


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
