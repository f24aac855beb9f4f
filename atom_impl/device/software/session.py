"""A recording session: what has to be in place around captures, put in place once and taken away again.

Sessions on several threads share one set of process-wide guards, so the last one out restores what the first one found.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from atom_impl.device.base import CaptureError
from atom_impl.device.software.arena import library
from atom_impl.device.software.asynchronous import Asynchronous
from atom_impl.device.software.deny import AttributeGuards, KernelOverrides
from atom_impl.device.software.dispatch import RecordingMode
from atom_impl.device.software.inductor import Instrumentation
from atom_impl.device.software.thread_state import state
from atom_impl.device.software.watch import CollectionWatch, CompileWatch


class _ProcessGuards:
    """Everything that a session changes outside its own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions = 0
        self._kernels = KernelOverrides()
        self._attributes = AttributeGuards()
        self._inductor = Instrumentation()
        self._compiles = CompileWatch()
        self._collections = CollectionWatch()

    def enter(self) -> None:
        with self._lock:
            self._sessions += 1
            if self._sessions == 1:
                for guard in (self._kernels, self._attributes, self._collections):
                    guard.install()

    def leave(self) -> None:
        with self._lock:
            self._sessions -= 1
            if self._sessions == 0:
                for guard in (self._collections, self._compiles, self._inductor, self._attributes, self._kernels):
                    guard.remove()

    def update(self) -> None:
        """Take in code that has been loaded since the session opened."""
        with self._lock:
            self._inductor.update()
            self._compiles.update()


guards = _ProcessGuards()


@contextmanager
def recording() -> Iterator[None]:
    """Open a session on this thread. Captures happen inside; between them, code runs as plain eager code.

    Raises `CaptureError` when a session is already open on this thread. A capture that is still open at the end is
    aborted.
    """
    if state.in_session:
        raise CaptureError("a recording session is already open on this thread; sessions do not nest")
    library()
    guards.enter()
    state.in_session = True
    state.asynchronous = Asynchronous()
    try:
        with RecordingMode():
            try:
                yield
            finally:
                if state.graph is not None:
                    state.graph.abort()
    finally:
        state.in_session = False
        del state.asynchronous
        guards.leave()
