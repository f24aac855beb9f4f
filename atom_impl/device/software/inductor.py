"""Recording Inductor's generated code kernel by kernel.

A compiled artefact recorded as one call would run its Python wrapper again at every replay, allocate afresh, and hide a
region break in its middle. Its C++ kernels and its allocations are therefore replaced, in the globals of the generated
modules, by versions that log themselves while this thread captures. Everything is put back when the session closes.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from atom_impl.device.base import CaptureError
from atom_impl.device.software.sites import call_site
from atom_impl.device.software.thread_state import current

_KERNEL = re.compile(r"^(\w+) = async_compile\.(\w+)\((?:\[([^\]]*)\])?", re.MULTILINE)
_LOGGED_KINDS = ("cpp_pybinding", "cpp")


class Instrumentation:
    """Replaced globals of `PyCodeCache` modules, and what they were."""

    def __init__(self) -> None:
        self._originals: list[tuple[ModuleType, str, Any]] = []
        self._seen: set[int] = set()

    def update(self) -> None:
        """Instrument the modules that were loaded since the last call."""
        for module in loaded_modules():
            if id(module) in self._seen:
                continue
            self._seen.add(id(module))
            for name, kind, written in generated_kernels(module.__file__ or ""):
                kernel = getattr(module, name, None)
                if callable(kernel):
                    wrapper = _logged(kernel, name, written) if kind in _LOGGED_KINDS else _refused(kernel, name, kind)
                    self._replace(module, name, wrapper)
            allocate = getattr(module, "empty_strided_cpu", None)
            if allocate is not None:
                self._replace(module, "empty_strided_cpu", _pooled(allocate))

    def remove(self) -> None:
        for module, name, original in reversed(self._originals):
            setattr(module, name, original)
        self._originals.clear()
        self._seen.clear()

    def _replace(self, module: ModuleType, name: str, value: Any) -> None:
        self._originals.append((module, name, getattr(module, name)))
        setattr(module, name, value)


def loaded_modules() -> list[ModuleType]:
    """The generated modules of this process; none where Inductor was never imported."""
    codecache = sys.modules.get("torch._inductor.codecache")
    return list(codecache.PyCodeCache.modules) if codecache is not None else []


@functools.cache
def generated_kernels(path: str) -> tuple[tuple[str, str, tuple[int, ...] | None], ...]:
    """Each kernel in a generated file once: its name, its kind, and the positions of the pointers it may write.

    A file's docstring holds its Triton kernels as well, in the block that tuned them while the file was compiled.
    """
    found: dict[str, tuple[str, str, tuple[int, ...] | None]] = {}
    for name, kind, types in _KERNEL.findall(Path(path).read_text()):
        arguments = re.findall(r"'([^']*)'", types)
        written = tuple(i for i, text in enumerate(arguments) if "*" in text and not text.startswith("const "))
        found[name] = name, kind, written if arguments else None
    return tuple(found.values())


def _logged(kernel: Callable[..., Any], name: str, written: tuple[int, ...] | None) -> Callable[..., Any]:
    def record_or_run(*args: Any) -> Any:
        graph = current()
        return kernel(*args) if graph is None else graph.recorder.launch(kernel, args, name, written)

    return record_or_run


def _pooled(allocate: Callable[..., Any]) -> Callable[..., Any]:
    def record_or_run(*args: Any) -> Any:
        graph = current()
        return allocate(*args) if graph is None else graph.recorder.allocate(allocate, *args)

    return record_or_run


def _refused(kernel: Callable[..., Any], name: str, kind: str) -> Callable[..., Any]:
    def run_or_refuse(*args: Any, **kwargs: Any) -> Any:
        if current() is None:
            return kernel(*args, **kwargs)
        raise CaptureError(
            f"kernel {name} at {call_site()} is of kind {kind!r}, which cannot be recorded; use launch()"
        )

    return run_or_refuse
