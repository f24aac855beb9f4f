"""What each fate and each exit code means in words, and how loudly to say it.

Red and green squares alone say nothing to a reader who sees neither colour. Every fate has its word and its mark, so
that a report reads the same in print, in a log and on any screen.
"""

from __future__ import annotations

from enum import Enum

from harness.errors import FAILED, FAULT, INCOMPLETE, PASS, UNFIT, USAGE
from harness.records import Fate, Status


class Tone(str, Enum):
    """How a fate or status is shown. The value is also its CSS class."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"  # not decided: more evidence or a decision is needed
    QUIET = "quiet"  # declared, and no reason to look


MARKS = {Tone.GOOD: "✓", Tone.BAD: "✗", Tone.OPEN: "?", Tone.QUIET: "·"}

_FATE_TONES = {
    Fate.MEASURED: Tone.GOOD,
    Fate.INCONCLUSIVE: Tone.OPEN,
    Fate.FASTER: Tone.OPEN,
    Fate.WAIVED: Tone.QUIET,
    Fate.UNSUPPORTED: Tone.QUIET,
}

FATE_MEANINGS = {
    Fate.WRONG: "numbers differ, or the engine's claim and the count from outside disagree; cannot be waived",
    Fate.CRASHED: "the worker raised or died",
    Fate.HUNG: "a phase outlived its time limit and the worker was ended",
    Fate.TEARDOWN_CRASHED: "everything was measured, then the worker died while closing",
    Fate.DOWNGRADED: "a step ran in another mode or bucket than the cell asks for",
    Fate.SLOWER: "slower than the baseline by more than the budget",
    Fate.COST_CHANGED: "an exact count differs from its closed form or from the baseline",
    Fate.INCONCLUSIVE: "the evidence straddles the budget",
    Fate.FASTER: "faster than the baseline by more than the budget, and not yet accepted",
    Fate.WAIVED: "failed, under a waiver with an owner and an expiry",
    Fate.MEASURED: "every gate passed",
    Fate.UNSUPPORTED: "declared and not run, for the stated reason",
    Fate.UNFIT: "this machine cannot give the evidence",
    Fate.NOT_RUN: "declared, and no complete evidence is stored",
}

_STATUS_TONES = {
    Status.PASS: Tone.GOOD,
    Status.FAIL: Tone.BAD,
    Status.INCONCLUSIVE: Tone.OPEN,
    Status.REPORT: Tone.QUIET,
    Status.NOT_APPLICABLE: Tone.QUIET,
}

EXIT_MEANINGS = {
    PASS: "every declared cell is accounted for and nothing is wrong",
    FAILED: "something is wrong, crashed, hung, downgraded or regressed",
    USAGE: "the command line or configuration cannot be used",
    INCOMPLETE: "incomplete, inconclusive, or a change that nobody has accepted",
    UNFIT: "this machine or environment cannot give the evidence",
    FAULT: "a fault of the harness itself, not a statement about the engine",
}

GATE_TITLES = {
    "G0": "repeat",
    "G1": "recording",
    "G2": "padding",
    "G3": "compiler",
    "G4": "batch",
    "G5": "logits",
    "G6": "tokens",
    "G7": "report",
}

GATE_CLAIMS = {
    "G0": "eager and compiled, run twice on the same inputs, give the same bits",
    "G1": "a replay gives the same bits as the same compiled code without a recording",
    "G2": "live rows keep their bits whatever the pad rows and foreign cache slots hold",
    "G3": "compiled code is no further from a float64 reference than eager code, by a stated factor",
    "G4": "a padded batch is no further from the reference than the bare batch",
    "G5": "the logits' distribution stays as close to the reference as eager's",
    "G6": "a token may differ only where eager's own margin is within its rounding",
    "G7": "largest difference in units of the last place and its layer; gates nothing",
}


def fate_tone(fate: Fate) -> Tone:
    """A fate without an entry is bad: a new fate must be made harmless on purpose."""
    return _FATE_TONES.get(fate, Tone.BAD)


def status_tone(status: Status) -> Tone:
    return _STATUS_TONES.get(status, Tone.BAD)


def exit_meaning(code: int) -> str:
    return EXIT_MEANINGS.get(code, "not an exit code of this harness")


def gate_family(gate: str) -> str:
    """`G3` of `G3.rows`, `closed` of `closed.copies`."""
    return gate.split(".", 1)[0]


def gate_title(gate: str) -> str:
    """`G1 recording`; a gate that is no numerics gate is its own title."""
    title = GATE_TITLES.get(gate_family(gate))
    return f"{gate} {title}" if title else gate
