"""`torch.cuda.CUDAGraph` for a CPU: the same calls, and the same consequences.

Stale addresses, frozen host values, freed blocks and reads behind the log are faults of the program, not of a driver.
With a graph that keeps a GPU's promises and no others, they can be shown on a laptop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import Enum

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from atom_impl.device.base import CaptureError, PoolHandle
from atom_impl.device.software.accesses import ReadBeforeWrite, reads_before_writes
from atom_impl.device.software.arena import OFF, STRAY, library
from atom_impl.device.software.dispatch import RecordingMode
from atom_impl.device.software.entries import Entry, RecordedOp, describe
from atom_impl.device.software.outside import OutsideTensors
from atom_impl.device.software.pool import Pool
from atom_impl.device.software.recorder import Recorder
from atom_impl.device.software.script import Script
from atom_impl.device.software.session import guards, recording
from atom_impl.device.software.streams import Edge, find_race
from atom_impl.device.software.thread_state import current, state

_ERROR_MODES = ("global", "thread_local", "relaxed")


class State(Enum):
    EMPTY = "empty"
    CAPTURING = "capturing"
    READY = "ready"
    ABORTED = "aborted"


class SoftwareGraph:
    """One recorded graph. Without an open session, a capture opens its own."""

    recorder: Recorder  # only while capturing

    def __init__(self) -> None:
        self.state = State.EMPTY
        self._pool: Pool | None = None
        self._generators: list[torch.Generator] = []
        self._session: AbstractContextManager[None] | None = None
        self._error: CaptureError | None = None
        self._script: Script | None = None
        self._outside: OutsideTensors | None = None
        self._edges: tuple[Edge, ...] = ()
        self._checked = False
        self._saved_generators: list[tuple[torch.Generator, torch.Tensor]] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Allow operations of this graph to draw from `generator`; the default generator is always known."""
        self._generators.append(generator)

    def capture_begin(self, pool: PoolHandle | None = None, capture_error_mode: str = "thread_local") -> None:
        """Start to record this thread's operations into `pool`, a handle of `new_pool()`; by default a pool of its own.

        Raises `CaptureError` when a graph is capturing on this thread, or another thread captures into `pool`.
        """
        self._check_can_begin(pool, capture_error_mode)
        self._pool = pool if isinstance(pool, Pool) else Pool()
        if not state.in_session:
            self._session = recording()
            self._session.__enter__()
        try:
            self._open()
        except BaseException:
            self._close_session()
            raise

    def capture_end(self) -> None:
        """Stop recording. Outside memory, pool and generators are as at `capture_begin`: nothing was computed.

        Raises `CaptureError` when the capture is invalid, even if the model swallowed the error; it is then aborted.
        """
        if state.graph is not self:
            raise RuntimeError("capture_end() without capture_begin() on this thread")
        recorder, error = self.recorder, self._error
        if recorder.active is not None:
            raise CaptureError(f"capture_end() inside {recorder.active}, which is one launch; a region cannot break it")
        error = error or recorder.streams.forgotten() or state.asynchronous.forgotten("segment")
        script = Script(recorder.pool, recorder.entries) if error is None else None
        self._undo_capture()
        self._close_session()
        error = error or find_race(recorder.entries)
        if script is None or error is not None:
            self.state = State.ABORTED
            self._forget()
            raise CaptureError(f"the capture is invalid: {error}") from error
        self._script, self._outside = script, recorder.outside
        self._edges = tuple(recorder.streams.edges)
        self.state = State.READY

    def replay(self) -> None:
        """Run the recorded launches at the recorded addresses; none of the model's Python runs.

        Raises `RuntimeError` when an outside tensor moved or was freed (checked until one replay outside a session has
        passed), or when an operation allocates something else than was recorded; the message names the operation.
        """
        if self.state is not State.READY or self._script is None:
            raise RuntimeError(f"this graph cannot replay: it is {self.state.value}, not captured")
        if current() is not None:
            raise CaptureError("replay() while this thread captures; end the capture first")
        if not self._checked and self._outside is not None:
            self._outside.check()
            self._checked = not state.in_session
        self._script.run()

    def reset(self) -> None:
        """Forget the recording; the graph may capture again. Its blocks go back to the pool with their tensors."""
        if self.state is State.CAPTURING:
            self.abort()
        self._forget()
        self.state = State.EMPTY

    def abort(self) -> None:
        """End a capture that failed. Memory, pool and generators are as before; the graph replays nothing."""
        if state.graph is self:
            self._undo_capture()
            self._close_session()
        self._forget()
        self.state = State.ABORTED

    def invalidate(self, error: CaptureError) -> None:
        """Make `capture_end` fail with `error`, even where the model swallows it."""
        self._error = self._error or error

    def pool(self) -> PoolHandle:
        """The handle of the pool that this graph was captured into."""
        if self._pool is None:
            raise RuntimeError("this graph has no pool before capture_begin()")
        return self._pool

    @property
    def node_count(self) -> int:
        """Recorded launches. Views, allocations and host work are none."""
        return len(self.launches)

    def census(self) -> Counter[str]:
        """How often each operation was recorded, by name."""
        return Counter(entry.name for entry in self.launches)

    def entries(self) -> Iterator[RecordedOp]:
        """Every launch in order: name, tensors, and the host scalars that are frozen in it."""
        return map(describe, self.launches)

    def edges(self) -> tuple[Edge, ...]:
        """Every fork and join of a side stream, in order."""
        return self._edges

    def reads_before_writes(self) -> list[ReadBeforeWrite]:
        """The tensors from outside the pool that a replay reads as it finds them and leaves changed, with the launches.

        A counter that was zeroed outside the graph is one; so is a cache that the graph reads before its step has
        written it. What a foreign kernel may write counts as read by it as well.
        """
        return list(reads_before_writes(self.launches))

    @property
    def allocations(self) -> tuple[int, int]:
        """Blocks that the recording takes from its pool, and their bytes."""
        return (self._script.allocations, self._script.allocated_bytes) if self._script is not None else (0, 0)

    @property
    def launches(self) -> list[Entry]:
        """The recorded launches; `entries()` describes them for an auditor."""
        if self.state is State.CAPTURING:
            return self.recorder.entries
        return self._script.launches if self._script is not None else []

    def _check_can_begin(self, pool: PoolHandle | None, capture_error_mode: str) -> None:
        if capture_error_mode not in _ERROR_MODES:
            raise ValueError(f"capture_error_mode {capture_error_mode!r} is none of {', '.join(_ERROR_MODES)}")
        if pool is not None and not isinstance(pool, Pool):
            raise ValueError(f"{pool!r} is no pool of the software graph; take the handle from new_pool()")
        if current() is not None:
            raise CaptureError("capture_begin() while a graph is capturing on this thread; captures do not nest")
        if self.state in (State.READY, State.CAPTURING):
            raise RuntimeError("this graph already holds a recording; call reset() first, or use a new graph")

    def _open(self) -> None:
        assert self._pool is not None
        if not any(isinstance(mode, RecordingMode) for mode in _get_current_dispatch_mode_stack()):
            raise CaptureError("capture_begin() inside an operator that ran eagerly: nothing here could be recorded")
        forgotten = state.asynchronous.forgotten("region")
        if forgotten is not None:
            raise forgotten
        guards.update()
        if not library().pool_capture_begin(self._pool.id):
            raise CaptureError(f"another thread is capturing into {self._pool!r}; give each thread its own pool")
        self._error = None
        self._saved_generators = [(g, g.get_state()) for g in (torch.default_generator, *self._generators)]
        self.recorder = Recorder(self._pool, self._generators)
        library().stray_reset()
        self.state = State.CAPTURING
        state.graph = self
        library().arena_mode(STRAY)

    def _undo_capture(self) -> None:
        state.graph = None
        library().arena_mode(OFF)
        for generator, saved in self._saved_generators:
            generator.set_state(saved)
        state.asynchronous.forgotten("segment")
        self.recorder.undo.restore()
        self.recorder.streams.release()
        library().pool_capture_end(self.recorder.pool.id)
        library().stray_reset()
        del self.recorder
        self._saved_generators = []

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)

    def _forget(self) -> None:
        self._script = None
        self._outside = None
        self._edges = ()
        self._checked = False
