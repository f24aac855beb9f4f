"""Which commit a run without git was of, told by its sources.

A GPU machine gets a copy of the working tree and no history, so its runs are of commit "unknown" and joined no series.
What they do keep is a digest of every source file that ran.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harness.sources import source_digest

#: How far back to look; each commit is unpacked, in a fifth of a second.
MOST = 400


def commit_of(checkout: Path, folders: Sequence[str], sources: str) -> str:
    """The newest commit of `checkout` whose `folders` have the digest `sources`; "" if there is none."""
    for commit in _git(checkout, "rev-list", "--all", f"--max-count={MOST}").decode().split():
        if _digest(checkout, commit, tuple(folders)) == sources:
            return commit
    return ""


@cache
def _digest(checkout: Path, commit: str, folders: tuple[str, ...]) -> str:
    packed = _git(checkout, "archive", "--format=tar", commit, *folders)
    if not packed:
        return ""  # one of the folders is not in it
    with tempfile.TemporaryDirectory(prefix="commit-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        return source_digest([Path(folder, name) for name in folders])


def _git(checkout: Path, *arguments: str) -> bytes:
    """Output of a read-only git command; nothing where it fails."""
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return b""
