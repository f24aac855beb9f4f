"""Which bucket every possible step of a cell will run in, by arithmetic that owes nothing to the engine.

A ladder of [1..8, 16, 32, ...] with 100 requests allowed leaves 97 to 100 without a graph: they ran at a third of the
speed, with every test green. Here every size is enumerated, and one without a bucket or a stated policy is a hole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.cells import Cell
from harness.profile import MODES, Profile

POLICY = "above every bucket: eager, by the profile's policy"
HOLE = "above every bucket, and no policy says that it may run eagerly"


@dataclass(frozen=True)
class Route:
    """Where a step of `size` requests (decode) or tokens (prefill) runs: in `bucket` rows under `mode`, or eagerly."""

    size: int
    mode: str
    bucket: int | None
    reason: str = ""
    hole: bool = False


@dataclass(frozen=True)
class Span:
    """Consecutive sizes that share a route."""

    first: int
    last: int
    route: Route

    def __str__(self) -> str:
        return f"{self.sizes} -> {self.where}"

    @property
    def sizes(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def where(self) -> str:
        route = self.route
        return f"eager: {route.reason}" if route.bucket is None else f"bucket {route.bucket} ({route.mode})"


@dataclass(frozen=True)
class Coverage:
    cell: str
    unit: str  # what the sizes count: "requests" or "tokens"
    query_len: int
    spans: tuple[Span, ...]

    @property
    def hole(self) -> str:
        """The sizes that fall through the ladder, in one sentence; empty if there are none."""
        sizes = ", ".join(span.sizes for span in self.spans if span.route.hole)
        if not sizes:
            return ""
        return f"{self.unit} {sizes}: {HOLE}; add a bucket, or set limits.eager_above_ladder = true"


def coverage(profile: Profile, cell: Cell) -> Coverage:
    """Every batch from 1 to `max_num_seqs`, or every prefill from 1 to `max_model_len` tokens."""
    decode_mode, prefill_mode = MODES[cell["mode"]]
    policy, limits = profile.limits.eager_above_ladder, profile.limits
    if cell["workload"] == "prefill":
        sizes = range(1, limits.max_model_len + 1)
        routes = [route(n, prefill_mode, sorted(profile.prefill_sizes), policy) for n in sizes]
        return Coverage(cell.id, "tokens", 1, _spans(routes))
    sizes = range(1, limits.max_num_seqs + 1)
    routes = [route(n, decode_mode, cell["ladder"] or (), policy) for n in sizes]
    return Coverage(cell.id, "requests", cell["query_len"], _spans(routes))


def route(size: int, mode: str, ladder: Sequence[int], eager_above_ladder: bool) -> Route:
    """The smallest bucket that holds `size`. `ladder` ascends."""
    if mode == "NONE":
        return Route(size, "NONE", None, "the mode records no graph for this phase")
    index = bisect_left(ladder, size)
    if index < len(ladder):
        return Route(size, mode, ladder[index])
    if eager_above_ladder:
        return Route(size, "NONE", None, POLICY)
    return Route(size, "NONE", None, HOLE, hole=True)


def _spans(routes: Iterable[Route]) -> tuple[Span, ...]:
    spans = []
    for _, group in groupby(routes, key=lambda r: (r.mode, r.bucket, r.reason)):
        members = list(group)
        spans.append(Span(members[0].size, members[-1].size, members[0]))
    return tuple(spans)
