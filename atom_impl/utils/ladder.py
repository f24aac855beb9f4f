"""The ladder: the batch sizes that get a recording, and the bucket that a batch is padded to.

`1..8, 16, 32, ..` with a limit of 100 ends at 96, so batches 97 to 100 ran eagerly and nobody was told; with a limit of
4 it recorded buckets that no scheduler could fill. So a ladder is computed here alone, and says what it changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ladder:
    """Ascending, unique bucket sizes, and how they differ from the documented ones."""

    sizes: tuple[int, ...]
    added: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


def documented_ladder(limit: int) -> list[int]:
    """The guide's formula, word for word. It has no bucket for a batch between its last multiple of 16 and `limit`."""
    return [*range(1, 9), *range(16, limit + 1, 16)]


def automatic_ladder(limit: int, max_batch: int) -> Ladder:
    """The documented ladder, made to cover every batch up to `min(limit, max_batch)` and none above it."""
    top = min(limit, max_batch)
    documented = documented_ladder(limit)
    sizes = tuple(size for size in documented if size <= top)
    added = (top,) if sizes[-1] < top else ()
    return Ladder(sizes + added, added, tuple(size for size in documented if size > top))


def explicit_ladder(field: str, sizes: Sequence[int], limits: Mapping[str, int]) -> Ladder:
    """The sizes that a user listed, ascending. One above any of the named `limits` raises `ValueError`."""
    check_reachable(field, sizes, limits)
    return Ladder(tuple(sorted(sizes)))


def check_reachable(field: str, sizes: Sequence[int], limits: Mapping[str, int]) -> None:
    """Raise if a size lies above any of the named `limits`: it costs memory and start-up time, and is never used."""
    name = min(limits, key=lambda limit: limits[limit])
    if sizes and max(sizes) > limits[name]:
        raise ValueError(
            f"{field} entry {max(sizes)}: no step can reach it, because {name} is {limits[name]}; "
            f"remove it, or raise {name} to at least {max(sizes)}"
        )


def smallest_bucket(sizes: Sequence[int], needed: int) -> int | None:
    """The smallest of the ascending `sizes` that holds `needed` rows or requests; None above the ladder."""
    index = bisect_left(sizes, needed)
    return sizes[index] if index < len(sizes) else None
