"""The output of one worker: a capped log on disk, and the last lines of the unit that is running.

A hang that prints fills a disk as surely as it wastes a night, so what is kept is bounded.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from harness.job import OUTPUT_MARK

TAIL_LINES = 50
LINE_CHARACTERS = 2000
LOG_BYTES = 4 * 1024 * 1024


class WorkerOutput:
    """Reads a worker's stdout and stderr from a non-blocking descriptor."""

    def __init__(self, fd: int, log: Path) -> None:
        self.fd = fd
        self._log: BinaryIO | None = None
        with suppress(OSError):  # a log that cannot be written costs the log, not the measurement
            self._log = log.open("wb")
        self._room = LOG_BYTES
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial = b""

    def read(self, most: int = 1 << 20) -> bool:
        """Take what is there, up to `most` bytes: a flood must not keep the watchdog away. False at end of file."""
        taken = 0
        while taken < most:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            taken += len(data)
            self._keep(data)
        return True

    def tail(self) -> str:
        """The last lines that the running unit printed."""
        lines = [*self._lines, *([self._text(self._partial)] if self._partial else [])]
        marks = [i for i, line in enumerate(lines) if line.startswith(OUTPUT_MARK)]
        return "\n".join(lines[marks[-1] + 1 :] if marks else lines)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        os.close(self.fd)

    def _keep(self, data: bytes) -> None:
        if self._log is not None and self._room > 0:
            with suppress(OSError):
                self._log.write(data[: self._room])
                self._log.flush()
            self._room -= len(data)
        *whole, rest = (self._partial + data).split(b"\n")
        self._lines.extend(map(self._text, whole[-TAIL_LINES:]))
        self._partial = rest[-LINE_CHARACTERS:]

    @staticmethod
    def _text(line: bytes) -> str:
        return line[-LINE_CHARACTERS:].decode(errors="replace").rstrip("\r")
