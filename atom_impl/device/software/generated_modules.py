"""The Python modules that Inductor generates: which kernels they hold, and names in them replaced for a while.

A name that was not put back would go on logging, or refusing, every later call of every model of the process.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_KERNEL = re.compile(r"^(\w+) = async_compile\.(\w+)\((?:\[([^\]]*)\])?", re.MULTILINE)


class ReplacedGlobals:
    """Names of generated modules that stand for something else until `remove`."""

    def __init__(self) -> None:
        self._originals: list[tuple[ModuleType, str, Any]] = []
        self._seen: set[int] = set()

    def new_modules(self) -> Iterator[ModuleType]:
        """The modules that were loaded since the last call."""
        for module in loaded_modules():
            if id(module) not in self._seen:
                self._seen.add(id(module))
                yield module

    def replace(self, module: ModuleType, name: str, value: Any) -> None:
        self._originals.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def remove(self) -> None:
        for module, name, original in reversed(self._originals):
            setattr(module, name, original)
        self._originals.clear()
        self._seen.clear()


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
