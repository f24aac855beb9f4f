"""How a gate says what it found. A gate that compared nothing has failed, whatever it meant to say.

An empty result file was once read as a clean run; here "no evidence" has one spelling, and it is red.
"""

from __future__ import annotations

from typing import Any

from harness.records import GateResult, Status


def judged(gate: str, ok: bool, message: str, **figures: Any) -> GateResult:
    """PASS or FAIL. `figures` are the other fields of `GateResult`."""
    return GateResult(gate=gate, status=Status.PASS if ok else Status.FAIL, message=message, **figures)


def report(gate: str, message: str, **figures: Any) -> GateResult:
    return GateResult(gate=gate, status=Status.REPORT, message=message, **figures)


def not_applicable(gate: str, reason: str) -> GateResult:
    return GateResult(gate=gate, status=Status.NOT_APPLICABLE, message=reason)


def compared_nothing(gate: str, what: str) -> GateResult:
    """For a gate that should have seen `what` and saw none."""
    return judged(gate, False, f"{gate} compared nothing: {what}; a gate without a comparison is not a pass")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
