"""How many kernels Inductor generated for a piece, counted in the source that runs.

A fusion that was lost turns one kernel into three and fails no test. Inductor's own counter cannot tell: a compile
counts kernels that it throws away, and a load adds what the compile had saved of its other counters. The source is the
same cold and warm.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: A kernel's definition in the module that Inductor writes; a multi-kernel only chooses among others.
_DEFINITION = re.compile(r"^\w+ = async_compile\.(?!multi_kernel\b)\w+\(", re.MULTILINE)


class GeneratedCode:
    """The modules that Inductor loaded within a block."""

    def __init__(self) -> None:
        self._before = _modules()
        self._files: set[Path] = set()

    def close(self) -> None:
        before = {id(module) for module in self._before}
        self._files = {Path(str(module.__file__)) for module in _modules() if id(module) not in before}

    @property
    def kernels(self) -> int | None:
        """Kernels defined in what was loaded; None if that was nothing. Files of one name have one content."""
        if not self._files:
            return None
        sources = {file.name: file for file in self._files}
        return sum(len(_DEFINITION.findall(file.read_text(encoding="utf-8"))) for file in sources.values())


@contextmanager
def generated_code() -> Iterator[GeneratedCode]:
    """Yields what is generated or loaded within the block, complete once it has ended."""
    code = GeneratedCode()
    yield code
    code.close()


def _modules() -> list[Any]:
    cache = sys.modules.get("torch._inductor.codecache")
    return [] if cache is None else list(cache.PyCodeCache.modules)
