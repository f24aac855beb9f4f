"""No compile while a graph records.

A first compile inside a capture once gave an empty recording and no error: the compiler allocated, ran and tuned
where only launches may be. Whoever records says so here, and every place that would compile asks first.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Refusal = Callable[[], str | None]

_local = threading.local()


def _refusals() -> list[Refusal]:
    if not hasattr(_local, "refusals"):
        _local.refusals = []
    refusals: list[Refusal] = _local.refusals
    return refusals


@contextmanager
def refusing_compiles(refuse: Refusal | str) -> Iterator[None]:
    """Within the block this thread compiles nothing. `refuse` is the reason, or a function that returns one or None.

    A function is asked at each attempt, so that a session may allow compiles between its segments.
    """
    check: Refusal = refuse if callable(refuse) else lambda: refuse
    _refusals().append(check)
    try:
        yield
    finally:
        _refusals().remove(check)


def refusal() -> str | None:
    """Why this thread may not compile now, or None."""
    for check in reversed(_refusals()):
        reason = check()
        if reason is not None:
            return reason
    return None


def check_may_compile(what: str) -> None:
    """Raise RuntimeError when a compile of `what` is refused; the message carries the reason and the call site."""
    reason = refusal()
    if reason is None:
        return
    site = "".join(traceback.format_stack(limit=12)[:-1])
    raise RuntimeError(
        f"{what} would have to be compiled now, but {reason}; run it once at this size before recording. "
        f"Call site (most recent call last):\n{site}"
    )
