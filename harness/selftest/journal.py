"""What a self-test has counted so far, on disk after every piece of it: hours of trials must outlive a kill.

Counts of two versions of the code are no counts of either, so a journal belongs to one declaration and one code.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from harness.errors import IncompleteError


class Trials(msgspec.Struct, frozen=True, tag="trials"):
    """Trials of one fault ("" is the control): for each, the gates that failed."""

    fault: str
    failed: list[list[str]]


class Verdicts(msgspec.Struct, frozen=True, tag="verdicts"):
    """One whole comparison: how many items ended in each outcome."""

    fault: str
    outcomes: dict[str, int]


class Head(msgspec.Struct, frozen=True, tag="head"):
    key: str
    begun: str  # ISO 8601, UTC


Piece = Trials | Verdicts
_DECODER = msgspec.json.Decoder(Head | Trials | Verdicts)


class Journal:
    """Pieces of one self-test, appended and synced one by one. An older one of another key is begun anew."""

    def __init__(self, path: Path, key: str, begun: str) -> None:
        self.path, self.begun, self.pieces = path, begun, list[Piece]()
        lines = _read(path)
        if lines and isinstance(lines[0], Head) and lines[0].key == key:
            self.begun = lines[0].begun
            self.pieces = [line for line in lines if not isinstance(line, Head)]
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._write(Head(key, begun))

    def add(self, piece: Piece) -> None:
        self._write(piece)
        self.pieces.append(piece)

    def trials(self, fault: str) -> list[list[str]]:
        """The gates that failed, for every trial of `fault`."""
        return [gates for piece in self._of(fault) if isinstance(piece, Trials) for gates in piece.failed]

    def outcomes(self, fault: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for piece in self._of(fault):
            if isinstance(piece, Verdicts):
                total.update(piece.outcomes)
        return total

    def courses(self, fault: str) -> int:
        """How many comparisons were made; the next one draws other orders."""
        return sum(isinstance(piece, Verdicts) for piece in self._of(fault))

    def finish(self) -> None:
        """The self-test is whole: the next one begins anew."""
        self.path.unlink(missing_ok=True)

    def _of(self, fault: str) -> Iterable[Piece]:
        return (piece for piece in self.pieces if piece.fault == fault)

    def _write(self, line: Head | Piece) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise IncompleteError(f"{self.path} cannot be written: {error.strerror}; what it holds is kept") from error


def _read(path: Path) -> list[Head | Piece]:
    """Whole lines that can be read; a last one that a kill cut short is dropped, and cut off."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with suppress(OSError):
            os.truncate(path, len(whole))
    lines: list[Head | Piece] = []
    for raw in whole.splitlines():
        with suppress(msgspec.DecodeError):
            lines.append(_DECODER.decode(raw))
    return lines
