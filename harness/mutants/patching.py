"""The two ways in which a mutant changes code. Both refuse a name that is not there.

A patch of a function that was renamed last month changes nothing, and a control that changes nothing is silent for the
wrong reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: How often each wrapped callable was entered, by name: a control that was never reached proves nothing.
reached: dict[str, int] = {}


class PatchError(RuntimeError):
    """The code that a mutant changes is not there any more."""


def swap(owner: Any, name: str, value: Any) -> Any:
    """Put `value` in the place of `owner.name` and return what was there. Raises `PatchError` if nothing was."""
    if not hasattr(owner, name):
        raise PatchError(f"{getattr(owner, '__name__', owner)!s} has no {name!r}; the mutant must follow the code")
    before = getattr(owner, name)
    setattr(owner, name, value)
    return before


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> Any:
    """Replace the callable `owner.name` by `around(original, *args, **kwargs)`, count its calls."""
    original = getattr(owner, name, None)
    where = f"{getattr(owner, '__name__', owner)}.{name}"

    def changed(*args: Any, **kwargs: Any) -> Any:
        reached[where] += 1
        return around(original, *args, **kwargs)

    reached[where] = 0
    return swap(owner, name, changed)
