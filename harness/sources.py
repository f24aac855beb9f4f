"""A digest of the code that runs, whatever git knows of it.

A commit says too little (the tree may hold edits, or come from an archive) and its dirty digest too much (a note beside
the code changes it), so whether two halves of a run may be joined is decided by the source files themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

SUFFIXES = frozenset({".py", ".toml", ".cpp", ".h", ".cu", ".hip", ".j2", ".txt"})


def source_digest(folders: Iterable[Path]) -> str:
    """Sixteen hex digits over names and contents of the source files below `folders`; absent folders count too."""
    digest = hashlib.sha256()
    for folder in folders:
        files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
        digest.update(f"{folder.name}:{len(files)}\0".encode())
        for path in files:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
