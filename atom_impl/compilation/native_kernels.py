"""Two things that Inductor's artefacts leave behind: the compiled C++ of a CPU kernel, and the table of loaded
modules.

An unpacked artefact holds a kernel's source but not its library, so each warm start ran g++ again for seconds a
piece; and saving or loading one empties the table by which a software recording finds kernels, so that later pieces
went unrecorded.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

MODULE_PREFIX = "torch._inductor.runtime.compile_tasks."


class NativeKernels:
    """The C++ libraries that Inductor has loaded so far. Make it after a compile and before a save."""

    def __init__(self) -> None:
        from torch._inductor.codecache import CppCodeCache, CppPythonBindingsCodeCache
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        self._keys = sorted({*CppCodeCache.cache, *CppPythonBindingsCodeCache.cache})
        self._root = Path(cache_dir())

    def copy_into(self, content: Path) -> None:
        """Put each library where Inductor looks for it when `content` is its cache directory."""
        for key in self._keys:
            folder = key[1:3]
            for file in sorted((self._root / folder).glob(f"{key}.*")):
                if file.suffix in (".cpp", ".so", ".o"):
                    (content / folder).mkdir(exist_ok=True)
                    shutil.copy2(file, content / folder / file.name)


@contextmanager
def keeping_kernel_modules() -> Iterator[None]:
    """Kernel modules loaded before or within the block stay in `PyCodeCache.modules`, whatever clears it inside."""
    from torch._inductor.codecache import PyCodeCache

    before = list(PyCodeCache.modules)
    named = _named_modules()
    try:
        yield
    finally:
        fresh = [module for name, module in _named_modules().items() if named.get(name) is not module]
        listed = {id(module) for module in PyCodeCache.modules}
        PyCodeCache.modules.extend(module for module in before + fresh if id(module) not in listed)


def _named_modules() -> dict[str, ModuleType]:
    return {name: module for name, module in list(sys.modules.items()) if name.startswith(MODULE_PREFIX)}
