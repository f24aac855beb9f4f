"""One lock for each GPU of the machine, whatever checkout, results folder or command wants it.

Two sign-offs on one GPU timed each other. Each was within its own limits, and both were wrong.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import UnfitError
from harness.execution.slots import Slot

WAIT_S = 1.0
SAY_EVERY_S = 60.0


def lock_folder() -> Path:
    """A folder of this user alone, the same for every process of the machine.

    Raises `UnfitError` if somebody else made it: a lock in it could be anything.
    """
    folder = Path(tempfile.gettempdir()) / f"atom-harness-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UnfitError(f"{folder} is not a folder of this user alone, so its locks mean nothing; remove it")
    return folder


def lock_of(slot: Slot) -> FileLock:
    return FileLock(lock_folder() / f"{re.sub(r'[^0-9a-zA-Z.]+', '-', slot.name)}.lock", thread_local=False)


@contextmanager
def held(slot: Slot, wanted: Callable[[], bool], say: Callable[[str], None]) -> Iterator[bool]:
    """Hold the slot's GPU, once whoever has it lets go. False, without it, when nothing is `wanted` of it any more."""
    if not slot.is_gpu:
        yield True
        return
    lock, said = lock_of(slot), 0.0
    while wanted():
        try:
            lock.acquire(timeout=WAIT_S)
        except Timeout:
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                say(f"GPU {slot.name} is held by another run of the harness; waiting for it")
            continue
        try:
            yield True
        finally:
            lock.release()
        return
    yield False


@contextmanager
def any_of(slots: Sequence[Slot], say: Callable[[str], None]) -> Iterator[Slot]:
    """Hold the first slot that is free, or whichever becomes so first."""
    said = 0.0
    while True:
        for slot in slots:
            if not slot.is_gpu:
                yield slot
                return
            lock = lock_of(slot)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            try:
                yield slot
            finally:
                lock.release()
            return
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            say(f"every GPU ({', '.join(slot.name for slot in slots)}) is held by another run; waiting for one")
        time.sleep(WAIT_S)
