"""The first commit that is slower, found by paired runs against a good one.

A plain bisect times each commit alone, and on a machine that drifts by 3 % it names whichever commit was measured in
the slow hour. Here every commit is timed in fresh pairs against the good end, in the same minutes.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from harness.errors import FAILED, INCOMPLETE, PASS, IncompleteError, UsageError
from harness.records import Fate, Status
from harness.store import RunData

#: How the gates of a comparison's items begin.
COMPARED = "latency.compare."


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


def intervals(run: RunData, *statuses: Status) -> dict[str, tuple[float, float]]:
    """The interval of the log-ratio of each compared item whose gate has one of `statuses`, by cell and gate."""
    return {
        f"{lane.cell} {gate.gate}": (gate.evidence["low"], gate.evidence["high"])
        for lane in run.lanes
        for gate in lane.gates
        if gate.gate.startswith(COMPARED) and gate.status in statuses and "high" in gate.evidence
    }


def without_the_step(outcome: Outcome, run: RunData, sought: Mapping[str, tuple[float, float]]) -> Outcome:
    """An inconclusive commit is good if every item of `sought`, the bad end's slower ones, excludes its step.

    Whether a commit keeps to a budget of 2 % can be open where a step of 10 % is out of the question.
    """
    verdict = run.verdict
    if outcome.state is not State.UNKNOWN or verdict is None or not sought:
        return outcome
    if not {cell.fate for cell in verdict.cells} <= {Fate.INCONCLUSIVE, Fate.MEASURED, Fate.FASTER, Fate.WAIVED}:
        return outcome
    found = intervals(run, *Status)
    if any(item not in found or found[item][1] >= low for item, (low, _) in sought.items()):
        return outcome
    nearest = min(sought, key=lambda item: sought[item][0] - found[item][1])
    most, least = (100 * math.expm1(value) for value in (found[nearest][1], sought[nearest][0]))
    reason = f"the step that is sought is at least {least:+.2f} % in {nearest}, and here it is at most {most:+.2f} %"
    return Outcome(outcome.commit, State.GOOD, reason)


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
