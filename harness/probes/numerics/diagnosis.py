"""From the pattern of wrong replays to the kind of fault, in the words of the fault catalogue.

Public reports name the wrong layer again and again: replay was blamed for a cache, the cache for a copy. A pattern
over many steps says more than the step that was noticed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Replay:
    """One judged replay. `after` is the bucket replayed before it, `answer` a hash of what it returned."""

    step: int
    bucket: int | None
    set_index: int
    padded: bool
    first: bool
    after: int | None
    longest: int
    soak: bool
    wrong: bool
    unwritten: bool
    stale: bool
    answer: int


def diagnose(replays: Sequence[Replay]) -> str:
    """Every explanation that fits all the wrong replays and none of the right ones; at least a direction to look in."""
    wrong = [r for r in replays if r.wrong]
    # Eager steps past the ladder are right whatever a recording does, so they speak for nothing when one is wrong.
    right = [r for r in replays if not r.wrong and (r.bucket is not None or all(w.bucket is None for w in wrong))]
    fits = [*_marks(wrong), *_patterns(wrong, right)] or [_direction(replays, wrong)]
    return "likely " + " or ".join(fits)


def _marks(wrong: Sequence[Replay]) -> list[str]:
    marks = []
    if any(r.unwritten for r in wrong):
        marks.append(
            "an output that was not written (the NaN put there before the replay is left), or freed memory that was "
            "read (LIFETIME: free blocks hold NaN)"
        )
    if any(r.stale for r in wrong):
        marks.append("STALE input (the row repeats the answer to another step)")
    return marks


def _patterns(wrong: Sequence[Replay], right: Sequence[Replay]) -> list[str]:
    patterns = []
    onset = _onset(wrong, right)
    if onset is not None:
        patterns.append(
            f"MOVED (every replay before step {onset} is right and every one from there on wrong: weights or a buffer "
            "were replaced then)"
        )
    if all(r.first for r in wrong) and any(r.bucket for r in right):
        patterns.append(
            "a fault of the first replay alone (MOVED address, or a runtime that drops work at first launch)"
        )
    if onset is None and all(r.padded for r in wrong) and any(not r.padded for r in right):
        patterns.append("PADDING (only steps with pad rows are wrong)")
    intermittent = _intermittent(wrong, right)
    if intermittent:
        patterns.append(
            "a runtime that now and then drops work (AMDRT), or state carried over (STALE, REARM): one input set in "
            "one order of buckets gave right and wrong answers"
        )
    foreign = all(_foreign(r) for r in wrong) and any(r.bucket is not None and not _foreign(r) for r in right)
    if foreign and onset is None and not intermittent:
        patterns.append("LIFETIME (only replays that follow another bucket's are wrong)")
    if right and wrong and min(r.longest for r in wrong) > max(r.longest for r in right):
        patterns.append(f"FROZEN host value (only contexts above {max(r.longest for r in right)} tokens are wrong)")
    if len({r.bucket for r in wrong}) == 1 and wrong[0].bucket and any(r.bucket != wrong[0].bucket for r in right):
        patterns.append(f"a fault of bucket {wrong[0].bucket}'s recording alone")
    return patterns


def _onset(wrong: Sequence[Replay], right: Sequence[Replay]) -> int | None:
    """The step from which on everything is wrong, if there is one: of several buckets, each right before it."""
    first = min(r.step for r in wrong)
    changed = {r.bucket for r in wrong} & {r.bucket for r in right}
    clean_cut = all(r.step < first for r in right) and len(wrong) >= 3 and len(changed) >= 2
    return first if clean_cut else None


def _intermittent(wrong: Sequence[Replay], right: Sequence[Replay]) -> bool:
    """Whether some replay is wrong that was right with the same inputs after the same bucket."""
    fine = {(r.bucket, r.set_index, r.after) for r in right}
    return any((r.bucket, r.set_index, r.after) in fine for r in wrong if r.bucket is not None and not r.first)


def _foreign(replay: Replay) -> bool:
    return replay.after is not None and replay.after != replay.bucket


def _direction(replays: Sequence[Replay], wrong: Sequence[Replay]) -> str:
    answers = defaultdict(set)
    for replay in replays:
        answers[replay.bucket, replay.set_index].add(replay.answer)
    if any(len(answers[r.bucket, r.set_index]) > 1 for r in wrong):
        return "state carried over from earlier steps (STALE, REARM or LIFETIME: one input set gave different answers)"
    return (
        "an input of the step that the recording does not see (a FROZEN value, a MOVED address, a STALE copy that "
        "was left out, a RACE with its upload), or other code: the same input set gives the same wrong answer each "
        "time; audit.staging and audit.operations count what is missing"
    )
