"""A finished recording as the allocator and the replay loop read it.

Each launch gets the addresses it had, in order. What was freed before it is poisoned again first, so that a launch that
still reads a freed block computes NaN and not, by luck, the right answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from atom_impl.device.software.arena import Event, library
from atom_impl.device.software.entries import Entry
from atom_impl.device.software.pool import Pool

_ALLOCATED = 1
_EXCLUDED = (
    torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.PythonTLSSnapshot)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
)


class Script:
    """Launches with their allocations. `run` is the replay."""

    def __init__(self, pool: Pool, launches: Sequence[Entry]) -> None:
        self.launches = list(launches)
        self._calls = [(entry.fn, entry.args, entry.kwargs) for entry in self.launches]
        self._pool = pool  # the addresses stay reserved as long as the recording
        events, bounds = _layout(_read_log(pool), self.launches)
        scripted = [event for event in events if event.kind == _ALLOCATED]
        self.allocations = len(scripted)
        self.allocated_bytes = sum(event.nbytes for event in scripted)
        self._events = (Event * len(events))(*events)
        self._bounds = (ctypes.c_size_t * len(bounds))(*bounds)

    def run(self) -> None:
        """Run every launch. Raises `RuntimeError` naming the launch that did something else than was recorded."""
        lib = library()
        step = lib.replay_step
        position = -1
        lib.replay_begin(ctypes.addressof(self._events), ctypes.addressof(self._bounds), len(self._calls))
        try:
            with (
                torch._C._InferenceMode(True),
                torch._C._ExcludeDispatchKeyGuard(_EXCLUDED),
                torch._C._AutoDispatchBelowADInplaceOrView(),
            ):
                for fn, args, kwargs in self._calls:
                    if not step():
                        raise RuntimeError("it allocated less than was recorded")
                    position += 1
                    fn(*args, **kwargs)
                if not step():
                    raise RuntimeError("it allocated less than was recorded")
        except Exception as error:
            raise RuntimeError(f"replaying {self.launches[position]}: {error}") from error
        finally:
            lib.replay_end()


def _read_log(pool: Pool) -> list[Event]:
    size = library().pool_log_size(pool.id)
    if size == 0:
        return []
    raw = (Event * size).from_address(library().pool_log_data(pool.id))
    return [Event(event.kind, event.ptr, event.nbytes) for event in raw]


def _layout(log: list[Event], launches: Sequence[Entry]) -> tuple[list[Event], list[int]]:
    """Events in replay order, and per launch the start of what to poison and the start of what it allocates.

    Blocks that a launch freed itself are its own scratch. Allocations between launches are fresh memory: poisoned
    like freed.
    """
    events: list[Event] = []
    bounds: list[int] = []
    cursor = 0
    for entry in launches:
        own = [event for event in log[entry.first_event : entry.last_event] if event.kind == _ALLOCATED]
        bounds.append(len(events))
        events.extend(log[cursor : entry.first_event])
        events.extend(event for event in own if event.ptr in entry.resized)
        bounds.append(len(events))
        events.extend(event for event in own if event.ptr not in entry.resized)
        cursor = entry.last_event
    bounds.append(len(events))
    events.extend(log[cursor:])
    bounds.append(len(events))
    return events, bounds
