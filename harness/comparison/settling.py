"""Warm up until stable: the first steps of a process took three times as long as those after the fortieth.

One warm-up step was one for each bucket, and what was left of the slow start stood in the first timed blocks of
whichever side came first.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

#: A block as fast as the fastest before it, to within this share, has not become faster.
NO_FASTER = 0.02
#: So many blocks in a row that have not, and the step is settled.
IN_A_ROW = 3
#: Blocks after which the warm-up ends in any case: what goes on getting faster is judged by the pairs.
MOST_BLOCKS = 25


def settle(block: Callable[[], Sequence[float]]) -> int:
    """Run `block`, which returns the microseconds of its steps, until it gets no faster. Returns the blocks it took."""
    fastest, steady = float("inf"), 0
    for taken in range(1, MOST_BLOCKS + 1):
        median = statistics.median(block())
        steady = steady + 1 if median > fastest * (1 - NO_FASTER) else 0
        fastest = min(fastest, median)
        if steady == IN_A_ROW:
            return taken
    return MOST_BLOCKS
