"""Inductor's kernels, which no dispatch mode sees.

A debug replay that lacked them would leave their outputs as the recording left them, and look like a stale buffer.
"""

from __future__ import annotations

from typing import Any

import torch

from atom_impl.device.debug_log import capturing
from atom_impl.device.software.generated_modules import ReplacedGlobals, generated_kernels

_WRITTEN = ("out_ptr", "in_out_ptr")


class GeneratedKernels(ReplacedGlobals):
    """While a session is open, the kernels in the globals of generated modules are replaced by `_Logged` ones."""

    def update(self) -> None:
        """Take in the modules that were loaded since the last call."""
        for module in self.new_modules():
            for name, _, written in generated_kernels(module.__file__ or ""):
                kernel = getattr(module, name, None)
                if kernel is not None:
                    self.replace(module, name, _Logged(kernel, name, written))


class _Logged:
    """A C++ kernel (called) or a Triton one (`run`), that logs itself while a debug graph captures."""

    def __init__(self, kernel: Any, name: str, written: tuple[int, ...] | None) -> None:
        self._kernel, self._name, self._written = kernel, name, written

    def __call__(self, *args: Any) -> Any:
        log = capturing.log
        if log is None:
            return self._kernel(*args)
        return log.kernel(self._kernel, args, {}, self._name, self._positions(args))

    def run(self, *args: Any, **kwargs: Any) -> Any:
        log = capturing.log
        if log is None:
            return self._kernel.run(*args, **kwargs)
        return log.kernel(self._run_on_current_stream, args, kwargs, self._name, self._positions(args))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def _run_on_current_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._kernel.run(*args, **kwargs | {"stream": torch.cuda.current_stream().cuda_stream})

    def _positions(self, args: tuple[Any, ...]) -> list[int]:
        if self._written is not None:
            return list(self._written)
        names = getattr(getattr(self._kernel, "fn", None), "arg_names", None) or [_WRITTEN[0]] * len(args)
        return [at for at, _ in enumerate(args) if at < len(names) and names[at].startswith(_WRITTEN)]
