"""Waivers: a red cell that somebody answers for, until a date, with a reason and a link.

A list of known failures without owners only grows. Here every line has an owner and an end, an expired one fails the
sign-off, and wrong numerics cannot be waived at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from harness.errors import UsageError
from harness.records import CellVerdict, Fate

FILE = "waivers.toml"
#: Wrong is never excused, what was not measured or not fit cannot be, and a green cell needs no excuse.
WAIVABLE = frozenset(
    {
        Fate.CRASHED,
        Fate.HUNG,
        Fate.TEARDOWN_CRASHED,
        Fate.DOWNGRADED,
        Fate.SLOWER,
        Fate.COST_CHANGED,
        Fate.INCONCLUSIVE,
        Fate.FASTER,
    }
)


class Waiver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cell` is a cell's id with `*` where anything may stand; `fates` are the only ones that it excuses."""

    cell: str
    fates: list[Fate]
    owner: str
    reason: str
    link: str
    expires: date  # the last day on which it holds

    def covers(self, verdict: CellVerdict) -> bool:
        return verdict.fate in self.fates and fnmatchcase(verdict.cell, self.cell)

    def __str__(self) -> str:
        return f"waived by {self.owner} until {self.expires}: {self.reason} ({self.link})"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    waiver: list[Waiver] = []


def load_waivers(results: Path) -> tuple[Waiver, ...]:
    """All waivers below `results`. Raises `UsageError` for a file that cannot be read or breaks a rule."""
    file = results / FILE
    if not file.is_file():
        return ()
    try:
        waivers = msgspec.toml.decode(file.read_bytes(), type=_File).waiver
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from error
    for number, waiver in enumerate(waivers, 1):
        for problem in _problems(waiver):
            raise UsageError(f"{file}: waiver {number} ({waiver.cell or 'no cell'}): {problem}")
    return tuple(waivers)


def apply(verdict: CellVerdict, waivers: Sequence[Waiver], today: date) -> CellVerdict:
    """The cell's verdict under the first waiver that covers it and has not expired."""
    held = next((w for w in waivers if w.covers(verdict) and today <= w.expires), None)
    if held is None or verdict.fate not in WAIVABLE:
        return verdict
    reason = f"{held}; it is {verdict.fate.value}: {verdict.reason}"
    return msgspec.structs.replace(verdict, fate=Fate.WAIVED, reason=reason)


def expired(waivers: Iterable[Waiver], cells: Sequence[str], today: date) -> list[str]:
    """One sentence for each waiver past its end that names a cell of this run."""
    return [
        f"The waiver of {w.owner} for {w.cell} expired on {w.expires}: renew it or take it out ({w.link})."
        for w in waivers
        if today > w.expires and any(fnmatchcase(cell, w.cell) for cell in cells)
    ]


def unused(waivers: Iterable[Waiver], verdicts: Sequence[CellVerdict], today: date) -> list[str]:
    """One sentence for each waiver in force that no cell of this run needs, although it names one."""
    return [
        f"The waiver of {w.owner} for {w.cell} excused nothing: take it out."
        for w in waivers
        if today <= w.expires
        and any(fnmatchcase(verdict.cell, w.cell) for verdict in verdicts)
        and not any(w.covers(verdict) for verdict in verdicts)
    ]


def _problems(waiver: Waiver) -> Iterable[str]:
    for name in ("cell", "owner", "reason", "link"):
        if not getattr(waiver, name).strip():
            yield f"{name} is empty; a waiver says whom to ask, why, and where it is followed up"
    if not waiver.fates:
        yield f"fates is empty; choose from {', '.join(sorted(fate.value for fate in WAIVABLE))}"
    for fate in waiver.fates:
        if fate not in WAIVABLE:
            yield f"{fate.value} cannot be waived; choose from {', '.join(sorted(f.value for f in WAIVABLE))}"
