"""The exact counts that a baseline keeps of a lane, each with the direction that is better.

A copy that crept into every arm alike follows every closed form and slows every step. Held against the count of the
last release it is one number that changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from harness.records import LaneRecord


class Direction(str, Enum):
    LOWER = "lower"  # less is better
    HIGHER = "higher"
    SAME = "same"  # neither way is better; a change wants a reader


#: Which counts are kept, by group, name pattern and direction. What a warm cache changes is no count of the engine's.
RULES: tuple[tuple[str, str, Direction], ...] = (
    ("step", "*.segments", Direction.LOWER),
    ("step", "*.regions", Direction.LOWER),
    ("step", "*.copies.*", Direction.LOWER),
    ("counted", "*", Direction.LOWER),
    ("recording", "*", Direction.LOWER),
    ("pool", "*", Direction.LOWER),
    ("compile", "graph_breaks", Direction.LOWER),
    ("compile", "recompiles", Direction.LOWER),
    ("compile", "generated_pieces", Direction.LOWER),
    ("kernels", "*", Direction.LOWER),
    ("compile", "num_graphs_seen", Direction.SAME),
    ("compile", "num_piecewise_graphs_seen", Direction.SAME),
    ("compile", "num_piecewise_capturable_graphs_seen", Direction.SAME),
)
_PIECES = ("num_inductor_compiles", "num_cache_hits", "num_piece_reuses")


@dataclass(frozen=True)
class Change:
    name: str
    before: int
    after: int
    direction: Direction

    @property
    def better(self) -> bool:
        return (
            self.after != self.before
            and {
                Direction.LOWER: self.after < self.before,
                Direction.HIGHER: self.after > self.before,
                Direction.SAME: False,
            }[self.direction]
        )

    def __str__(self) -> str:
        return f"{self.name} {self.before} -> {self.after}"


def exact_counts(lane: LaneRecord) -> dict[str, int]:
    """`group/name` -> count, for every count of the lane that `RULES` keeps."""
    compiles = lane.capture.get("compiles") or {}
    groups: dict[str, Any] = {
        "step": lane.counters.get("per_bucket"),
        "counted": lane.counters.get("audit"),
        "recording": {name: lane.capture.get(name) for name in ("segments", "regions", "nodes")},
        "pool": {name: lane.counters.get(name) for name in ("pool_bytes", "pool_bytes_largest")},
        "kernels": lane.capture.get("kernels") or {},
        "compile": {**compiles, "generated_pieces": sum(compiles.get(name, 0) for name in _PIECES)} if compiles else {},
    }
    found = ((f"{group}/{name}", count) for group, tree in groups.items() for name, count in _leaves(tree))
    return {name: count for name, count in found if direction(name) is not None}


def direction(name: str) -> Direction | None:
    """The better direction of `group/name`; None if it is not kept."""
    group, _, rest = name.partition("/")
    return next((way for of, pattern, way in RULES if of == group and fnmatchcase(rest, pattern)), None)


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, list[Change]]:
    """What changed, by group. A name that one side lacks counts as zero there: a new kind of copy is a change.

    A group that `before` lacks altogether is left out, because nobody counted it then.
    """
    known = {group_of(name) for name in before}
    found: dict[str, list[Change]] = {group: [] for group in sorted(known)}
    for name in sorted({*before, *after}):
        was, now, way = before.get(name, 0), after.get(name, 0), direction(name) or Direction.SAME
        if was != now and group_of(name) in known:
            found[group_of(name)].append(Change(name.partition("/")[2], was, now, way))
    return found


def group_of(name: str) -> str:
    return name.partition("/")[0]


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, int) and not isinstance(tree, bool):
        yield path, tree
