"""Building and loading the allocator behind a software graph.

A half-written library, or one built against another torch, takes the process down in its first allocation and names
nothing. The library is therefore built once per source, torch and ABI under a lock, moved into place in one step, and a
machine without a compiler gets an error that says what to install.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("arena.cpp")

#: Values of `arena_mode`; RECORD also carries its pool, see `record_into`.
OFF, STRAY = 0, 3
_RECORD = 1


class CompilerMissing(RuntimeError):
    """The software graph needs a C++ compiler and found none, or the one it found failed."""


class Event(ctypes.Structure):
    """One allocation (kind 1) or release (kind 0) in a pool."""

    _fields_ = [("kind", ctypes.c_int64), ("ptr", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]


_SIGNATURES: dict[str, tuple[list[type], type | None]] = {
    "arena_install": ([], None),
    "arena_poison": ([ctypes.c_int], None),
    "arena_mode": ([ctypes.c_int64], ctypes.c_int64),
    "pool_create": ([ctypes.c_size_t], ctypes.c_int64),
    "pool_close": ([ctypes.c_int64], None),
    "pool_find": ([ctypes.c_void_p], ctypes.c_int64),
    "pool_base": ([ctypes.c_int64], ctypes.c_void_p),
    "pool_peak": ([ctypes.c_int64], ctypes.c_size_t),
    "pool_used": ([ctypes.c_int64], ctypes.c_size_t),
    "pool_taken": ([ctypes.c_int64], ctypes.c_size_t),
    "pool_taken_bytes": ([ctypes.c_int64], ctypes.c_size_t),
    "pool_returned": ([ctypes.c_int64], ctypes.c_size_t),
    "pool_streams": ([ctypes.c_int64, ctypes.c_int], None),
    "use_raw_scratch": ([ctypes.c_size_t], None),
    "pool_capture_begin": ([ctypes.c_int64], ctypes.c_int),
    "pool_capture_end": ([ctypes.c_int64], None),
    "pool_log_size": ([ctypes.c_int64], ctypes.c_size_t),
    "pool_log_data": ([ctypes.c_int64], ctypes.c_void_p),
    "pool_poison_free": ([ctypes.c_int64], ctypes.c_size_t),
    "stray_reset": ([], None),
    "stray_contains": ([ctypes.c_void_p], ctypes.c_int),
    "stray_total": ([], ctypes.c_size_t),
    "replay_begin": ([ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], None),
    "replay_step": ([], ctypes.c_int),
    "replay_end": ([], None),
}

_lock = threading.Lock()
_library: ctypes.PyDLL | None = None


def library() -> ctypes.PyDLL:
    """The loaded allocator, installed behind torch's CPU allocator. The first call may build it (a few seconds)."""
    global _library
    with _lock:
        if _library is None:
            loaded = ctypes.PyDLL(str(build()))  # PyDLL keeps the GIL: the calls are shorter than giving it up
            for name, (arguments, result) in _SIGNATURES.items():
                function = getattr(loaded, name)
                function.argtypes, function.restype = arguments, result
            loaded.arena_install()
            _library = loaded
    return _library


def record_into(pool_id: int) -> int:
    """The `arena_mode` value that sends this thread's allocations to pool `pool_id`."""
    return (pool_id + 1) * 4 + _RECORD


@contextmanager
def arena_mode(mode: int) -> Iterator[None]:
    """What this thread's allocations do inside the block."""
    switch = library().arena_mode
    previous = switch(mode)
    try:
        yield
    finally:
        switch(previous)


def cache_dir() -> Path:
    """Where built libraries are kept: `ATOM_CACHE_ROOT`, else `XDG_CACHE_HOME/atom`, else `~/.cache/atom`."""
    root = os.environ.get("ATOM_CACHE_ROOT")
    if not root:
        root = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "atom")
    return Path(root) / "software_graph"


def find_compiler() -> str:
    """Path of the C++ compiler: `$CXX`, else g++, c++ or clang++ on PATH. Raises `CompilerMissing`."""
    named = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [named] if named else ["g++", "c++", "clang++"])), None)
    if found is None:
        sought = f"CXX={named}" if named else "g++, c++ and clang++ on PATH"
        raise CompilerMissing(
            f"graphs on the CPU need a C++ compiler; looked for {sought}. Install one (for example the package g++ or "
            "build-essential), or name it in CXX; graph mode NONE needs none"
        )
    return found


def build() -> Path:
    """The allocator's library for this torch, built if the cache has none."""
    target = cache_dir() / f"arena-{_identity()}.so"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(target.with_suffix(".lock")):
            if not target.exists():
                _compile(target)
    except OSError as error:
        raise CompilerMissing(
            f"cannot build the CPU graph allocator in {target.parent}: {error}; "
            "name a writable folder in ATOM_CACHE_ROOT"
        ) from error
    return target


def _identity() -> str:
    facts = (SOURCE.read_text(), torch.__version__, str(torch._C._GLIBCXX_USE_CXX11_ABI), sys.platform)
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """One builder at a time. The lock belongs to the open file, so a killed builder leaves nothing behind."""
    import fcntl

    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _compile(target: Path) -> None:
    torch_dir = Path(torch.__file__).parent
    handle, scratch = tempfile.mkstemp(dir=target.parent, suffix=".tmp")
    os.close(handle)
    command = [
        *(find_compiler(), "-O2", "-std=c++20", "-shared", "-fPIC"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(str(SOURCE), "-I", str(torch_dir / "include"), "-L", str(torch_dir / "lib"), "-lc10", "-o", scratch),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            tail = "\n".join(done.stderr.strip().splitlines()[-8:])
            raise CompilerMissing(f"{command[0]} could not build the CPU graph allocator ({SOURCE.name}):\n{tail}")
        os.replace(scratch, target)
    finally:
        Path(scratch).unlink(missing_ok=True)
