"""Where downloaded and converted weights are kept, and how they get there whole.

A download that was interrupted, or two processes that converted at once, left half a file under the final name, and
every later run read it. Files are written beside their place and renamed into it, under a lock.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from atom_impl.model_loader.source import WeightsError


def cache_root() -> Path:
    """ATOM_CACHE_ROOT, else XDG_CACHE_HOME/atom, else ~/.cache/atom."""
    if root := os.environ.get("ATOM_CACHE_ROOT"):
        return Path(root)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "atom"
    return Path.home() / ".cache" / "atom"


def weights_dir() -> Path:
    """The per-user directory for weights, made when missing. Raises WeightsError when it cannot be written."""
    path = cache_root() / "weights"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise WeightsError(f"{path} cannot be written: {error.strerror}; name another with ATOM_CACHE_ROOT") from error
    return path


@contextmanager
def locked(directory: Path, name: str) -> Iterator[None]:
    """Hold the lock of `name` in `directory`; other processes wait, and then find the work done."""
    with FileLock(directory / f".{name}.lock"):
        yield


@contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """A private directory on the same file system, removed at the end with whatever was not renamed out of it."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".partial-") as path:
        yield Path(path)
