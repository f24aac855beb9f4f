"""Recording Inductor's generated code kernel by kernel.

A compiled artefact recorded as one call would run its Python wrapper again at every replay, allocate afresh, and hide a
region break in its middle. Its C++ kernels and its allocations are therefore replaced, in the globals of the generated
modules, by versions that log themselves while this thread captures. Everything is put back when the session closes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atom_impl.device.base import CaptureError
from atom_impl.device.software.generated_modules import ReplacedGlobals, generated_kernels
from atom_impl.device.software.sites import call_site
from atom_impl.device.software.thread_state import current

_LOGGED_KINDS = ("cpp_pybinding", "cpp")


class Instrumentation(ReplacedGlobals):
    """The kernels and allocations of generated modules, replaced by versions that log themselves."""

    def update(self) -> None:
        """Instrument the modules that were loaded since the last call."""
        for module in self.new_modules():
            for name, kind, written in generated_kernels(module.__file__ or ""):
                kernel = getattr(module, name, None)
                if callable(kernel):
                    wrapper = _logged(kernel, name, written) if kind in _LOGGED_KINDS else _refused(kernel, name, kind)
                    self.replace(module, name, wrapper)
            allocate = getattr(module, "empty_strided_cpu", None)
            if allocate is not None:
                self.replace(module, "empty_strided_cpu", _pooled(allocate))


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
