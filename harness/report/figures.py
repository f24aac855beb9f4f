"""Figures as people read them.

A dashboard that turned a missing metric into 0 showed perfect agreement where nothing had been compared. Here what is
absent, not a number or infinite says so in every output, and a unit is chosen once a table, so that figures below each
other can be compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

ABSENT = "–"

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite number; a truth value is not one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def figure(value: object) -> str:
    """One measured or limiting figure, to four significant digits; counts whole, with thousands separated."""
    if value is None:
        return ABSENT
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"


def nbytes(value: object) -> str:
    """Bytes in the largest binary unit that leaves at least one whole."""
    if not isinstance(value, (int, float)) or not is_number(value):
        return figure(value)
    size, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{_digits(size)} {units[0]}"


def seconds(value: float) -> str:
    """A duration, in the form in which people say it."""
    if not math.isfinite(value):
        return figure(value)
    if value >= 60:
        minutes, rest = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    return f"{_digits(value)} s" if value >= 0.1 else f"{value * 1e3:.0f} ms"


def _decimals(value: float) -> int:
    """How many decimals leave three significant digits."""
    size = abs(value)
    return 0 if size >= 100 else 1 if size >= 10 else 2


def _digits(value: float) -> str:
    return f"{value:.{_decimals(value)}f}"


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time for a whole table or axis. `per_us` is one microsecond in it."""

    name: str
    per_us: float

    @classmethod
    def fitting(cls, times_us: Iterable[float]) -> TimeUnit:
        """The unit in which the smallest of `times_us` still has a whole part."""
        finite = [time for time in times_us if is_number(time) and time > 0]
        smallest = min(finite, default=0.0)
        if smallest >= 1e6:
            return cls("s", 1e-6)
        return cls("ms", 1e-3) if smallest >= 1e3 else cls("µs", 1.0)

    def text(self, time_us: float) -> str:
        """The bare figure; the unit stands in the table's head."""
        return self.alike(time_us)[0]

    def alike(self, first_us: float, *others_us: float) -> list[str]:
        """Bare figures with as many decimals as the first needs, so that a median and its quartiles read as one."""
        decimals = _decimals(first_us * self.per_us) if math.isfinite(first_us) else 2
        times = (first_us, *others_us)
        return [f"{us * self.per_us:.{decimals}f}" if math.isfinite(us) else figure(us) for us in times]

    def spread(self, median_us: float, p25_us: float, p75_us: float) -> str:
        """`31.2 [30.9–31.8]`"""
        median, low, high = self.alike(median_us, p25_us, p75_us)
        return f"{median} [{low}–{high}]"


def clean(text: str) -> str:
    """`text` without terminal escapes and without the control characters that XML and browsers refuse."""
    return _CONTROL.sub("\ufffd", _ANSI.sub("", text.replace("\r\n", "\n")))


def flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested record as (dotted name, text) pairs in its own order; an empty branch stays visible."""
    pairs: list[tuple[str, str]] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            pairs += flat(value, f"{name}.")
        else:
            pairs.append((name, leaf(name, value)))
    return pairs


def leaf(name: str, value: object) -> str:
    """One value of a nested record: bytes and times by the unit in their name, lists on one line."""
    if isinstance(value, (Mapping, list, tuple)):
        items = [leaf(name, item) if isinstance(item, (Mapping, list, tuple)) else _plain(item) for item in value]
        return ", ".join(items) if items else "none"
    if name.endswith("bytes") and is_number(value):
        exact = figure(value)
        return exact if isinstance(value, (int, float)) and abs(value) < 1024 else f"{exact} ({nbytes(value)})"
    return _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return figure(value) if value != "" else ABSENT
