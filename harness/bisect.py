"""The first commit that is slower, found by paired runs against a good one.

A plain bisect times each commit alone, and on a machine that drifts by 3 % it names whichever commit was measured in
the slow hour. Here every commit is timed in fresh pairs against the good end, in the same minutes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from harness.errors import FAILED, INCOMPLETE, PASS, IncompleteError, UsageError
from harness.records import Fate
from harness.store import RunData


class State(Enum):
    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"  # inconclusive, or too old for the interface: its neighbours are asked instead


@dataclass(frozen=True)
class Outcome:
    """What one commit was, and the sentence that says why."""

    commit: str
    state: State
    reason: str = ""


@dataclass(frozen=True)
class Found:
    """`suspects`: the first bad commit alone, or with those before it that could not be judged, in order."""

    suspects: tuple[str, ...]
    outcomes: tuple[Outcome, ...]


def commits_between(checkout: Path, good: str, bad: str) -> list[str]:
    """Commits after `good` up to `bad`, first parents, oldest first. Raises UsageError if `good` is no ancestor."""
    start, end = _resolve(checkout, good), _resolve(checkout, bad)
    listed = _git(checkout, "rev-list", "--reverse", "--first-parent", f"{start}..{end}").split()
    parent = _git(checkout, "rev-parse", f"{listed[0]}^1").strip() if listed else ""
    if parent != start:
        raise UsageError(
            f"{good} is not before {bad} on its line of first parents; bisecting needs a good commit there"
        )
    return listed


def first_bad(commits: Sequence[str], judge: Callable[[str], Outcome]) -> Found:
    """Halve `commits`, of which the last must be bad. Raises IncompleteError if it is not, or cannot be judged."""
    outcomes = {commits[-1]: judge(commits[-1])}
    last = outcomes[commits[-1]]
    if last.state is not State.BAD:
        raise IncompleteError(
            f"the bad end {last.commit[:12]} is {last.state.value}, so there is nothing to find: {last.reason}"
        )
    low, high = -1, len(commits) - 1  # low is good, high is bad
    while True:
        open_ones = [index for index in range(low + 1, high) if commits[index] not in outcomes]
        if not open_ones:
            return Found(tuple(commits[low + 1 : high + 1]), tuple(outcomes[c] for c in commits if c in outcomes))
        middle = min(open_ones, key=lambda index: abs(2 * index - low - high))
        outcome = outcomes[commits[middle]] = judge(commits[middle])
        if outcome.state is State.BAD:
            high = middle
        elif outcome.state is State.GOOD:
            low = middle


def outcome_of(commit: str, run: RunData) -> Outcome:
    """What a comparison against the good commit says of `commit`."""
    verdict = run.verdict
    assert verdict is not None, "a comparison ends in a verdict"
    slower = [cell for cell in verdict.cells if cell.fate is Fate.SLOWER]
    if slower:
        return Outcome(commit, State.BAD, f"{len(slower)} cells slower, such as {slower[0].cell}: {slower[0].reason}")
    reason = verdict.reasons[0] if verdict.reasons else verdict.title
    fates = {cell.fate for cell in verdict.cells}
    if verdict.exit_code == PASS or fates <= {Fate.MEASURED, Fate.FASTER, Fate.WAIVED}:
        return Outcome(commit, State.GOOD, verdict.title)
    return Outcome(commit, State.UNKNOWN, reason)


def lines(found: Found) -> tuple[int, list[str]]:
    """Exit code and text of what a bisect found."""
    told = [f"{outcome.state.value:<8} {outcome.commit[:12]} {outcome.reason}" for outcome in found.outcomes]
    if len(found.suspects) == 1:
        return FAILED, [*told, f"first bad commit: {found.suspects[0]}"]
    named = ", ".join(commit[:12] for commit in found.suspects)
    return INCOMPLETE, [*told, f"the first bad commit is one of {named}: those before the last could not be judged"]


def _resolve(checkout: Path, name: str) -> str:
    return _git(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()


def _git(checkout: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git: {error}; bisecting needs git and a checkout with its history") from error
    if done.returncode:
        raise UsageError(f"git {' '.join(arguments)}: {done.stderr.strip() or 'no such commit'}")
    return done.stdout
