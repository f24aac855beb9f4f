"""Whether the engine's own step costs what it should beside the same step without a graph: it waits for nothing, and
it is not slower.

Two milliseconds of sleep before every replay leave all answers and all counts right, and without a baseline nothing
said that a step took twice as long. Two things need none. A thread that sleeps, takes a lock or reads a file gives its
processor up, and the kernel counts that exactly; and arms R and C alternate, so that a slow minute hits both.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from harness.probes.gates import compared_nothing, judged, not_applicable
from harness.records import GateResult

#: How much slower than arm C the engine's own step may be. Measured on clean code: 0.32 to 1.09 of it on a CPU.
BUDGET = {"cpu": 0.25, "cuda": 0.10}
#: The chance at which a suspicion is confirmed by luck, for one bucket. A release has some hundreds of them.
ALPHA = 1e-4
PAIRS = 32
#: A suspicion takes so many of them first: where half do not show it, chance made it, and the rest are spared.
FIRST_PAIRS = 8
GATES = ("latency.waits", "latency.graph")
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


@dataclass(frozen=True)
class Sample:
    """One step from idle to idle. `waits`: how often its thread gave the processor up of its own accord meanwhile."""

    us: float
    waits: int


@dataclass(frozen=True)
class Pair:
    """Neighbours in time: the step without a graph and the step through the engine's dispatch."""

    plain: Sample
    served: Sample


@dataclass(frozen=True)
class Case:
    """The pairs of one bucket, `again(n)` for n fresh ones, and `where()` for the line that the time is spent in."""

    size: int
    pairs: Sequence[Pair]
    again: Callable[[int], Sequence[Pair]]
    where: Callable[[], str]
    plain: str = "C"  # the arm without a graph: E at level 0, where C is the same code


def waits_so_far() -> int:
    """Voluntary context switches of this thread."""
    return resource.getrusage(_THREAD).ru_nvcsw


def gates(cases: Sequence[Case], device: str) -> list[GateResult]:
    """`latency.waits` and `latency.graph` over all buckets; what looks wrong is looked at again with fresh pairs."""
    if not cases:
        return [compared_nothing(name, "no step was timed") for name in GATES]
    return [_waits_gate(cases), _time_gate(cases, BUDGET[device])]


def not_comparable(reason: str) -> list[GateResult]:
    return [not_applicable(name, reason) for name in GATES]


def _waits_gate(cases: Sequence[Case]) -> GateResult:
    """A step that waits where the plain one does not. Where the plain one waits too (threads), nothing is claimed."""
    quiet = [case for case in cases if median(pair.plain.waits for pair in case.pairs) == 0]
    if not quiet:
        arm = cases[0].plain
        reason = f"arm {arm} gives its processor up in most steps itself (several threads): waiting says nothing here"
        return not_applicable("latency.waits", reason)
    found = {}
    for case in quiet:
        if median(pair.served.waits for pair in case.pairs) > 0:
            pairs = _looked_again(case, lambda pair: pair.served.waits > pair.plain.waits)
            more = sum(pair.served.waits > pair.plain.waits for pair in pairs)
            less = sum(pair.served.waits < pair.plain.waits for pair in pairs)
            if chance(more, more + less) <= ALPHA:
                each = median(pair.served.waits for pair in pairs)
                found[case.size] = f"waits {each:g} times in a step of size {case.size} ({more} of {len(pairs)} steps)"
    if not found:
        message = f"no step of arm R waits for anything on the host in {len(quiet)} sizes"
        return judged("latency.waits", True, message, measured=0.0, threshold=0.0)
    size, text = next(iter(found.items()))
    message = (
        f"arm R {text} and arm {cases[0].plain} in none{_at(cases, size)}; {len(found)} of {len(quiet)} sizes; likely "
        "STEPCOST: a sleep, a lock, a file or a synchronisation on the host's way to the replay"
    )
    return judged("latency.waits", False, message, measured=float(len(found)), threshold=0.0, where=f"size {size}")


def _time_gate(cases: Sequence[Case], budget: float) -> GateResult:
    """Medians raise a suspicion; fresh pairs decide it by a sign test, which one slow minute cannot sway."""
    ratios = {case.size: _ratio(case.pairs) for case in cases}
    slow = {}
    for case in cases:
        if ratios[case.size] > 1 + budget:
            pairs = _looked_again(case, lambda pair: pair.served.us > pair.plain.us * (1 + budget))
            over = sum(pair.served.us > pair.plain.us * (1 + budget) for pair in pairs)
            ratios[case.size] = _ratio(pairs)
            if chance(over, len(pairs)) <= ALPHA:
                extra_us = median(pair.served.us - pair.plain.us for pair in pairs)
                slow[case.size] = f"{ratios[case.size]:.2f} times arm {case.plain}'s, {extra_us:.0f} us more"
    worst = max(ratios.values())
    if not slow:
        listed = ", ".join(f"{ratio:.2f} at size {size}" for size, ratio in ratios.items())
        message = f"arm R's step beside arm {cases[0].plain}'s: {listed}; none is shown to be above {1 + budget:g}"
        return judged("latency.graph", True, message, measured=worst, threshold=1 + budget)
    size, text = next(iter(slow.items()))
    message = (
        f"arm R's step of size {size} takes {text} (allowed {1 + budget:g}){_at(cases, size)}; {len(slow)} of "
        f"{len(cases)} sizes; likely STEPCOST: work or waiting that the step without a graph does not have"
    )
    return judged("latency.graph", False, message, measured=worst, threshold=1 + budget, where=f"size {size}")


def _looked_again(case: Case, shows: Callable[[Pair], bool]) -> list[Pair]:
    pairs = list(case.again(FIRST_PAIRS))
    if sum(map(shows, pairs)) > len(pairs) / 2:
        pairs += case.again(PAIRS - FIRST_PAIRS)
    return pairs


def chance(hits: int, trials: int) -> float:
    """The probability of at least `hits` heads in `trials` throws of a fair coin; 1 without trials."""
    return sum(comb(trials, k) for k in range(hits, trials + 1)) / 2**trials


def _ratio(pairs: Sequence[Pair]) -> float:
    return median(pair.served.us / pair.plain.us if pair.plain.us > 0 else 1.0 for pair in pairs)


def _at(cases: Sequence[Case], size: int) -> str:
    site = next(case.where() for case in cases if case.size == size)
    return f", at {site}" if site else ""


def paired(samples: Mapping[str, Sequence[Sample]], plain: str, served: str) -> list[Pair]:
    """The samples of two arms that were taken in the same block, as pairs."""
    return [Pair(one, two) for one, two in zip(samples[plain], samples[served], strict=True)]
