"""One exception for each way in which a command ends badly, and the exit code that says which way it was.

One exit code for every cause is how a full disk comes to be read as a regression. Scripts branch on these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

PASS = 0
FAILED = 1  # wrong, crashed, hung or regressed
USAGE = 2  # a command line, profile or folder that cannot be used
INCOMPLETE = 3  # interrupted, inconclusive, or less evidence than declared
UNFIT = 4  # this machine cannot give the evidence
FAULT = 5  # the harness itself is wrong

#: The order of precedence where several apply: the first one of these is the exit code.
PRECEDENCE = (USAGE, UNFIT, FAULT, FAILED, INCOMPLETE)


class HarnessError(Exception):
    """Ends a command with one message and `exit_code`."""

    exit_code: int = FAULT


class UsageError(HarnessError):
    """What was asked for cannot be done as asked; nothing was started."""

    exit_code = USAGE


class IncompleteError(HarnessError):
    """Work stopped before all the declared evidence was in; what was recorded is kept."""

    exit_code = INCOMPLETE


class UnfitError(HarnessError):
    """This machine or environment cannot give the evidence that the profile asks for."""

    exit_code = UNFIT


class HarnessFault(HarnessError):
    """The harness contradicts itself: never a statement about the engine under test."""

    exit_code = FAULT


def first_exit_code(codes: Iterable[int]) -> int:
    """The exit code of a command to which all of `codes` apply."""
    present = set(codes)
    return next((code for code in PRECEDENCE if code in present), PASS)
