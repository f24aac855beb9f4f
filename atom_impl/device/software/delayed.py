"""Host-to-device copies that are made late, as a GPU makes them.

A copy from pinned memory is made some time after the call. A host that fills the buffer for the next step before then
gives the GPU a mixture of two steps; on a CPU, where the call is the copy, that never shows. This queue stands between
the host and the device and does its work late, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(slots=True)
class _Work:
    due: int
    run: Callable[[], object]
    source: torch.Tensor | None = None  # host memory that the work reads when it runs
    value: torch.Tensor | None = None  # what lay there when the work was given
    name: str = ""
    given_at: int = 0


class CopyEvent:
    """A point in the queue, with the calls of `torch.cuda.Event` that a gate needs."""

    def __init__(self, queue: DelayedCopies) -> None:
        self._queue = queue
        self._position = 0

    def record(self) -> None:
        """The event stands after all work given so far."""
        self._position = self._queue.given

    def query(self) -> bool:
        return self._queue.done >= self._position

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        self._queue.run_until(self._position)


class DelayedCopies:
    """Copies and launches, done in the order they were given, each `ticks` later.

    A tick passes with every copy and launch that is given, and with `tick()`. `torn` says which copies read something
    else than they were given for, because the host was faster. With `at_once` the copy itself is made at once, for a
    caller that computes on the CPU right away; its source still counts as in use for `ticks`.
    """

    def __init__(self, ticks: int = 5, *, at_once: bool = False) -> None:
        if ticks < 1:
            raise ValueError(f"a copy that is made {ticks} ticks later is not delayed; ticks is 1 or more")
        self.ticks = ticks
        self.at_once = at_once
        self.given = 0  # pieces of work
        self.done = 0
        self.torn: list[str] = []
        self._now = 0
        self._pending: deque[_Work] = deque()

    def copy(self, target: torch.Tensor, source: torch.Tensor, name: str = "") -> None:
        """Copy host memory `source` to `target`, later. `name` is what `torn` calls it."""
        if self.at_once:
            target.copy_(source)
        run: Callable[[], object] = (lambda: None) if self.at_once else (lambda: target.copy_(source))
        shown = name or f"{list(source.shape)} {str(source.dtype).removeprefix('torch.')}"
        self._give(_Work(self._now + self.ticks, run, source, source.clone(), shown, self._now))

    def launch(self, work: Callable[[], object]) -> None:
        """Call `work` after all that was given before it, as a kernel of the same stream runs."""
        self._give(_Work(self._now + self.ticks, work))

    def event(self) -> CopyEvent:
        return CopyEvent(self)

    @property
    def in_flight(self) -> int:
        """Pieces of work that were given and are not done."""
        return len(self._pending)

    def tick(self, ticks: int = 1) -> None:
        """Let time pass, and do what is due."""
        self._now += ticks
        while self._pending and self._pending[0].due <= self._now:
            self._do_next()

    def run_until(self, position: int) -> None:
        """Do the first `position` pieces of work, as a host that waits for them sees it."""
        while self.done < position:
            self._do_next()

    def synchronize(self) -> None:
        """Do everything that was given."""
        self.run_until(self.given)

    def _give(self, work: _Work) -> None:
        self._pending.append(work)
        self.given += 1
        self.tick()

    def _do_next(self) -> None:
        work = self._pending.popleft()
        if work.source is not None and work.value is not None and not torch.equal(work.source, work.value):
            waited = self._now - work.given_at
            self.torn.append(
                f"{work.name}: the host rewrote it before its copy was made, {waited} ticks after the call"
            )
        work.run()
        self.done += 1
