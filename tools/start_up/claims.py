"""What the starts must show, and whether they do: counts exactly, times as intervals over pairs of processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.comparison.paired import Budget, estimate

Round = Mapping[str, Mapping[str, Any]]  # side -> one start, as `child.run` returns it

#: A warm start, Dynamo's trace left out, against the start without a compiler.
WARM_AGAINST_EAGER = 1.2
#: A cold start against one that shares and caches nothing.
COLD_AGAINST_EACH = 1 / 3
ALPHA = 0.025
MIN_PAIRS = 5


@dataclass(frozen=True)
class Claim:
    """`holds` is None where the interval straddles the threshold or the pairs are too few to say."""

    name: str
    measured: float
    threshold: float
    holds: bool | None
    detail: str


def distinct_pieces(split_ops: int) -> int:
    """The first piece, the last, and one for all between them."""
    return min(3, split_ops + 1)


def claims(rounds: Sequence[Round], levels: Sequence[int], split_ops: int) -> list[Claim]:
    """Every claim that the sides of `rounds` allow."""
    found: list[Claim] = []
    if 2 in levels:
        found += [_count(rounds, "2 cold", 1), _count(rounds, "2 warm", 0)]
    if 3 in levels:
        found += [_count(rounds, "3 cold", distinct_pieces(split_ops)), _count(rounds, "3 warm", 0)]
    for level in levels:
        if level:
            name = f"level {level}: warm, trace left out"
            found.append(_ratio(rounds, f"{level} warm", "0", WARM_AGAINST_EAGER, name, without=("trace_s",)))
            name = f"level {level}: warm, trace and the import of torch's compiler left out"
            left_out = ("trace_s", "compiler_import_s")
            found.append(_ratio(rounds, f"{level} warm", "0", WARM_AGAINST_EAGER, name, without=left_out))
    if any("3 each" in one for one in rounds):
        name = "level 3: cold, against each piece by itself"
        found.append(_ratio(rounds, "3 cold", "3 each", COLD_AGAINST_EACH, name))
        found.append(_compiling(rounds, f"{name}, less what a warm start takes"))
    return found


def _count(rounds: Sequence[Round], side: str, want: int) -> Claim:
    counts = [int(one[side]["counters"].get("num_inductor_compiles", 0)) for one in rounds]
    worst = max(counts, key=lambda count: abs(count - want))
    return Claim(f"level {side}: Inductor compiles", worst, want, worst == want, f"in {len(counts)} starts")


def _ratio(
    rounds: Sequence[Round], side: str, against: str, threshold: float, name: str, without: Sequence[str] = ()
) -> Claim:
    """Seconds of `side` less its parts `without`, over those of `against`, of the same round."""
    pairs = [one for one in rounds if side in one and against in one]
    ratios = [
        (one[side]["whole_s"] - sum(one[side][part] for part in without)) / one[against]["whole_s"] for one in pairs
    ]
    return _judged(name, ratios, threshold)


def _compiling(rounds: Sequence[Round], name: str) -> Claim:
    """What compiling alone takes, shared against each piece by itself: both starts less the warm one of the round."""
    pairs = [one for one in rounds if "3 each" in one]
    taken = [{side: one[side]["whole_s"] - one["3 warm"]["whole_s"] for side in ("3 cold", "3 each")} for one in pairs]
    return _judged(name, [max(one["3 cold"], 1e-3) / max(one["3 each"], 1e-3) for one in taken], COLD_AGAINST_EACH)


def _judged(name: str, ratios: Sequence[float], threshold: float) -> Claim:
    """One ratio a round. No verdict on fewer than `MIN_PAIRS`."""
    middle = statistics.median(ratios)
    if len(ratios) < 2:
        return Claim(name, middle, threshold, None, "one pair has no interval")
    found = estimate([math.log(ratio) for ratio in ratios], Budget(0.02), ALPHA)
    low, high = math.exp(found.low), math.exp(found.high)
    holds = True if high <= threshold else False if low > threshold else None
    detail = f"95 % interval {low:.3f} to {high:.3f} over {len(ratios)} pairs"
    if len(ratios) < MIN_PAIRS:
        holds, detail = None, f"{detail}, fewer than the {MIN_PAIRS} that a verdict takes"
    return Claim(name, middle, threshold, holds, detail)
