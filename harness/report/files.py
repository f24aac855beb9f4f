"""Reports are written whole or not at all: half a page from a full disk reads as a short run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from harness.errors import UsageError


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step. Raises `UsageError` if it cannot be written; an earlier file then stays."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise UsageError(
            f"report {path} cannot be written: {error.strerror}; name another folder with --results"
        ) from error
