"""Compiled artefacts on disk: private, whole or absent, and never someone else's.

Two processes that wrote one cache file at once, a disk that filled up mid-write, a copied home directory: each gave a
crash on the next start, or worse, code for another machine. An artefact here is a directory that appears in one
rename and carries a manifest of every byte; whatever does not match is a miss with a reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

MANIFEST = "manifest.json"
FORMAT = 1
LOCK_TIMEOUT_S = 900.0


class ArtefactMiss(Exception):
    """An artefact cannot be used. `reason` is a short word that a counter can carry."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def private_dir(path: str | os.PathLike[str]) -> Path:
    """Make `path` readable and writable by this user alone, for artefacts are loaded as code. Raises PermissionError.

    Missing parents are made private as well; an existing directory that others own or may write to is refused.
    """
    directory = Path(path).expanduser().absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = directory.stat()
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        raise PermissionError(f"cache directory {directory} belongs to user {info.st_uid}; choose another cache_dir")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"cache directory {directory} may be written by others; run chmod go-w, or choose another"
        )
    return directory


def write_atomically(path: Path, text: str) -> None:
    """`path` holds either its old content or all of `text`, whenever the process dies."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def locked(directory: Path, name: str) -> Iterator[bool]:
    """Hold `name`'s lock among all processes; yields False when it could not be had in time and work is done
    unlocked.
    """
    lock = FileLock(str(directory / f".{name}.lock"), timeout=LOCK_TIMEOUT_S)
    try:
        lock.acquire()
    except (Timeout, OSError, NotImplementedError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def publish(directory: Path, name: str, owner: str, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a new directory, seal it with a manifest, and move it to `directory/name` in one rename.

    What was there before is replaced: the caller has found it unusable. `owner` names the build and machine it is for.
    """
    final = directory / name
    scratch = Path(tempfile.mkdtemp(dir=directory, prefix=f".{name}."))
    try:
        content = scratch / "content"
        write(content)
        manifest = {"format": FORMAT, "owner": owner, "files": _digests(content)}
        (content / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
        if final.exists():
            final.rename(scratch / "replaced")
        content.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def verify(path: Path, owner: str) -> None:
    """Raise `ArtefactMiss` unless `path` is whole, unchanged, and made by `owner`. Files added since are not judged."""
    if not path.is_dir():
        raise ArtefactMiss("missing", str(path))
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files, made_by, version = manifest["files"], manifest["owner"], manifest["format"]
        wrong = [name for name, digest in files.items() if _digest(_within(path, name)) != digest]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtefactMiss("corrupt", f"{path}: {error}") from error
    if made_by != owner or version != FORMAT:
        raise ArtefactMiss("foreign", f"{path} was made by {made_by!r}, this is {owner!r}")
    if wrong or not files:
        raise ArtefactMiss("corrupt", f"{path}: changed since it was written: {', '.join(wrong[:3]) or 'no files'}")


def _within(path: Path, name: str) -> Path:
    file = path / name
    if path.resolve() not in file.resolve().parents:
        raise ValueError(f"{name!r} lies outside the artefact")
    return file


def _digests(content: Path) -> dict[str, str]:
    return {
        file.relative_to(content).as_posix(): _digest(file) for file in sorted(content.rglob("*")) if file.is_file()
    }


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
