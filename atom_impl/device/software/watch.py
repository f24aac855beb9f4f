"""Compiles, newly loaded code and garbage collections in the middle of a capture.

A first compile inside a capture once gave an empty recording and no error. A collection may run finalisers that free
memory or unload a module, which aborts a capture on a GPU. Both are noticed here and make the capture fail with the
place.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from atom_impl.device.base import CaptureError
from atom_impl.device.software.sites import call_site
from atom_impl.device.software.thread_state import current


class CompileInCapture(CaptureError, AssertionError):
    """A compile or a load of code in a capture. Dynamo rewraps all errors but a few: AssertionError is one of those."""


class CompileWatch:
    """Refuses compiles and loads of generated code while this thread captures."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._watched: set[str] = set()

    def update(self) -> None:
        """Watch the compilers. Inductor is heavy, and watched from when someone has imported it."""
        if "dynamo" not in self._watched:
            from torch._dynamo.callback import callback_handler

            self._watched.add("dynamo")
            callback_handler.register_start_callback(_on_compile)
            self._undo.append(lambda: callback_handler.remove_start_callback(_on_compile))
        codecache = sys.modules.get("torch._inductor.codecache")
        if codecache is not None and "inductor" not in self._watched:
            self._watched.add("inductor")
            self._undo.append(_watch_loads(codecache.PyCodeCache))

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()
        self._watched.clear()


def _on_compile(_: Any) -> None:
    _refuse("torch.compile compiles")


def _watch_loads(cache: Any) -> Callable[[], None]:
    original = vars(cache)["load_by_key_path"]

    def load_by_key_path(cls: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse("generated code is loaded")
        return original.__func__(cls, *args, **kwargs)

    cache.load_by_key_path = classmethod(load_by_key_path)
    return lambda: setattr(cache, "load_by_key_path", original)


def _refuse(what: str) -> None:
    graph = current()
    if graph is not None:
        error = CompileInCapture(f"{what} while capturing, at {call_site()}; run the same call once before the capture")
        graph.invalidate(error)
        raise error


class CollectionWatch:
    """Keeps the collector off, and fails a capture in which someone collects by hand."""

    def __init__(self) -> None:
        self._was_enabled = False

    def install(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()
        gc.callbacks.append(_on_collection)

    def remove(self) -> None:
        gc.callbacks.remove(_on_collection)
        if self._was_enabled:
            gc.enable()


def _on_collection(phase: str, _: dict[str, int]) -> None:
    graph = current()
    if phase == "start" and graph is not None:  # an exception would be lost here: the capture fails when it ends
        graph.invalidate(
            CaptureError(f"garbage was collected while capturing, at {call_site()}; collect before the capture")
        )
