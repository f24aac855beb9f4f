"""When the evidence is looked at, fixed before the first pair runs, and what one look may cost in false alarms.

Measuring until the difference is significant finds one in identical code: after enough looks every comparison has been
over its limit once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_LOOKS = 4
FEWEST_PAIRS = 5


@dataclass(frozen=True)
class LookPlan:
    """Cumulative pairs at each look, and the error rate that all looks share in equal parts.

    `alpha` is two-sided: half of it for calling something slower that is not, half for calling it faster. An equal
    split needs no assumption about how the looks depend on each other, and costs a few pairs.
    """

    pairs: tuple[int, ...] = (5, 8, 12, 18)
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 1 <= len(self.pairs) <= MOST_LOOKS:
            raise ValueError(f"pairs {list(self.pairs)}: plan 1 to {MOST_LOOKS} looks; alpha is split over all of them")
        if self.pairs[0] < FEWEST_PAIRS:
            raise ValueError(
                f"pairs {list(self.pairs)}: the first look needs at least {FEWEST_PAIRS} pairs, because processes "
                "differ more than the runs within one"
            )
        if any(later <= earlier for earlier, later in zip(self.pairs, self.pairs[1:], strict=False)):
            raise ValueError(f"pairs {list(self.pairs)}: each look needs more pairs than the one before it")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha {self.alpha}: must lie between 0 and 1, for instance 0.05")

    @property
    def side_alpha(self) -> float:
        """What one direction may err over all looks."""
        return self.alpha / 2

    @property
    def look_alpha(self) -> float:
        """What one direction may err at one look."""
        return self.side_alpha / len(self.pairs)

    def reached(self, pairs: int) -> tuple[int, ...]:
        """The looks that `pairs` pairs have come to, as pair counts."""
        return tuple(look for look in self.pairs if look <= pairs)

    def next(self, pairs: int) -> int | None:
        """How many pairs the next look needs; None after the last."""
        return next((look for look in self.pairs if look > pairs), None)


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses Holm's procedure rejects, so that any false one among them has at most `alpha`."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    rejected = [False] * len(p_values)
    for position, index in enumerate(order):
        if not p_values[index] <= alpha / (len(order) - position):  # a NaN rejects nothing
            break
        rejected[index] = True
    return rejected
