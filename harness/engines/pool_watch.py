"""What a step takes from the recordings' pool on a CPU, by the account of the pool's own allocator.

A block that is free between two replays is a temporary of the next one: whoever takes it meanwhile writes into a
recording, or reads what a replay left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.engines.observed import PoolUse


class PoolWatch:
    """What is taken from software pools and given back to them from now on, outside captures.

    Each pool says in `outside` how many blocks were taken, of how many bytes, and how many came back in all.
    """

    def __init__(self, pools: Sequence[Any]) -> None:
        # An earlier revision's pool keeps no such account.
        self._pools = [pool for pool in pools if hasattr(pool, "outside")]
        self._before = self._totals()
        self._site = ""

    def look(self, call_site: Callable[[], str]) -> None:
        """Called after each operator: the first change belongs to it."""
        if self._pools and not self._site and self._totals() != self._before:
            self._site = call_site()

    def use(self) -> PoolUse | None:
        """None if no pool tells."""
        if not self._pools:
            return None
        taken, nbytes, returned = (now - then for now, then in zip(self._totals(), self._before, strict=True))
        return PoolUse(taken, nbytes, returned, self._site)

    def _totals(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(*(pool.outside for pool in self._pools), strict=True)))
