"""Side streams: launches that a recording may run beside its main stream.

A missing wait gives the right tokens on most runs of most machines, and on a CPU on all of them, because it runs one
launch after the other. So the waits are kept as edges, and a capture ends with two questions: has every side stream
come back, and do two launches that no edge orders touch the same bytes?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import torch

from atom_impl.device.base import CaptureError, unjoined
from atom_impl.device.software.accesses import overlap, reads, writes
from atom_impl.device.software.arena import library
from atom_impl.device.software.entries import Entry, Moment
from atom_impl.device.software.sites import call_site
from atom_impl.device.software.thread_state import current

MAIN = "main"
_ONE, _FORKED, _ON_SIDE = 0, 1, 2


class Edge(NamedTuple):
    """What is launched on `after` from launch number `position` on waits for all that `before` holds by then."""

    before: str
    after: str
    position: int


class SideStream:
    """A stream beside the current one, by name. Outside a capture its work runs at once, where it stands."""

    def __init__(self, name: str) -> None:
        if name == MAIN:
            raise ValueError(f"a side stream cannot be called {MAIN!r}: that is the stream that captures")
        self.name = name
        self._entered: list[tuple[Streams, str] | None] = []

    def fork(self) -> None:
        """What this stream is given from here on waits for all that the current stream was given."""
        graph = current()
        if graph is not None:
            graph.recorder.streams.fork(self.name, call_site())

    def join(self) -> None:
        """What the current stream is given from here on waits for all that this stream was given."""
        graph = current()
        if graph is not None:
            graph.recorder.streams.join(self.name)

    def __enter__(self) -> SideStream:
        graph = current()
        self._entered.append(graph.recorder.streams.enter(self.name) if graph is not None else None)
        return self

    def __exit__(self, *_: object) -> None:
        entered = self._entered.pop()
        if entered is not None:
            streams, before = entered
            streams.leave(before)

    def __repr__(self) -> str:
        return f"SideStream({self.name!r})"


class Streams:
    """The streams of one capture: which one is current, what waits for what, and which have not come back."""

    def __init__(self, pool_id: int) -> None:
        self.edges: list[Edge] = []
        self._pool_id = pool_id
        self._current = MAIN
        self._clocks: dict[str, dict[str, int]] = {MAIN: {MAIN: 0}}  # per stream: the launches it comes after
        self._forked: dict[str, str] = {}  # not joined yet -> call site of the fork
        self._launches = 0
        self._kept: list[torch.Tensor] = []

    def fork(self, name: str, site: str) -> None:
        if name == self._current:
            raise CaptureError(f"side stream {name!r} is the current stream at {site}; it cannot wait for itself")
        self._wait(name, self._current)
        self._forked.setdefault(name, site)
        self._tell_pool()

    def join(self, name: str) -> None:
        if name not in self._forked:
            raise CaptureError(f"join() of side stream {name!r} at {call_site()}, which this segment has not forked")
        self._wait(self._current, name)
        del self._forked[name]
        if not self._forked:
            self._kept.clear()
        self._tell_pool()

    def enter(self, name: str) -> tuple[Streams, str]:
        if name not in self._forked:
            raise CaptureError(
                f"work for side stream {name!r} at {call_site()}, which waits for nothing of this segment: a GPU would "
                "run it outside the graph; call fork() first"
            )
        before, self._current = self._current, name
        self._tell_pool()
        return self, before

    def leave(self, before: str) -> None:
        self._current = before
        self._tell_pool()

    def launched(self, entry: Entry, results: Iterable[torch.Tensor]) -> None:
        """Note where `entry` stands. What a side stream returned is kept: on a GPU no other stream may reuse it."""
        self._launches += 1
        clock = self._clocks[self._current]
        clock[self._current] = clock.get(self._current, 0) + 1
        if self._forked:
            entry.moment = Moment(self._current, clock[self._current], dict(clock))
            if self._current != MAIN:
                self._kept.extend(results)

    def forgotten(self) -> CaptureError | None:
        """The error of a capture that ends now, if a stream has not come back."""
        for name, site in self._forked.items():
            return unjoined(f"{name!r}, forked at {site},")
        return None

    def release(self) -> None:
        """Let go of what was kept, whatever became of the capture."""
        self._kept.clear()
        self._forked.clear()
        self._current = MAIN
        self._tell_pool()

    def _wait(self, waiting: str, waited_for: str) -> None:
        clock = self._clocks.setdefault(waiting, {})
        for stream, launches in self._clocks[waited_for].items():
            clock[stream] = max(clock.get(stream, 0), launches)
        self.edges.append(Edge(waited_for, waiting, self._launches))

    def _tell_pool(self) -> None:
        state = _ON_SIDE if self._current != MAIN else _FORKED if self._forked else _ONE
        library().pool_streams(self._pool_id, state)


def find_race(entries: Sequence[Entry]) -> CaptureError | None:
    """The error for the first two launches that touch the same memory, one of them to change it, without an order."""
    beside = [entry for entry in entries if entry.moment is not None]
    for earlier, later in combinations(beside, 2):
        if not _is_ordered(earlier, later) and _conflict(earlier, later):
            return CaptureError(
                f"{later}, on stream {_stream_of(later)}, does not wait for {earlier}, on stream "
                f"{_stream_of(earlier)}, and they touch the same memory; fork() or join() between them, and keep "
                "what a side stream reads until it is joined"
            )
    return None


def _is_ordered(earlier: Entry, later: Entry) -> bool:
    assert earlier.moment is not None
    assert later.moment is not None
    return later.moment.seen.get(earlier.moment.stream, 0) >= earlier.moment.number


def _conflict(earlier: Entry, later: Entry) -> bool:
    changed, changes = writes(earlier), writes(later)
    return any(
        overlap(a, b)
        for ours, theirs in ((changed, [*reads(later), *changes]), (reads(earlier), changes))
        for a in ours
        for b in theirs
    )


def _stream_of(entry: Entry) -> str:
    return repr(entry.moment.stream) if entry.moment is not None else repr(MAIN)
