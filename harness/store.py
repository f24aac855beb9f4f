"""A run on disk: `results/runs/<run id>/records.jsonl`, append-only, one synced line a record.

asv and pytest-benchmark write once, at the end: a Ctrl-C, a crash or a kill loses every finished measurement of the
night. Here a unit is on disk once it ends, a line cut short by a kill is seen and named, and a full disk says so.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from harness.errors import IncompleteError, UsageError
from harness.records import SCHEMA_VERSION, AddedGates, LaneRecord, Line, PairRecord, RunHeader, Verdict

RECORDS = "records.jsonl"
SERVING = "serving"
FLOAT32 = "float32"
_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


class DamagedRun(UsageError):
    """A run's file has no readable header, so nothing in it can be trusted."""


class RunLocked(UsageError):
    """Another process is writing this run."""


@dataclass(frozen=True)
class RunData:
    """A run as read back. `damaged_lines` were cut short or unreadable: their units count as not run."""

    header: RunHeader
    lanes: list[LaneRecord] = field(default_factory=list)
    verdict: Verdict | None = None
    damaged_lines: int = 0
    path: Path | None = None  # the run's folder
    pairs: list[PairRecord] = field(default_factory=list)


def load_run(path: Path | str, *, added: bool = True) -> RunData:
    """Read a run's folder, or its records file, without changing it; `added=False` leaves lanes as workers left them.

    Raises `UsageError` if there is no such run or a newer schema wrote it, `DamagedRun` if its header is unreadable.
    """
    file = _records_file(Path(path))
    whole, tail = _split_tail(_read(file))
    lines, damaged = _decode(whole)
    header = next((line for line in lines if isinstance(line, RunHeader)), None)
    if header is None:
        raise DamagedRun(f"{file}: no readable header line; the run cannot be used, so start a new one with --fresh")
    if header.schema > SCHEMA_VERSION:
        raise UsageError(
            f"{file}: schema {header.schema} is newer than this harness reads ({SCHEMA_VERSION}); use a newer checkout"
        )
    verdicts = [line for line in lines if isinstance(line, Verdict)]
    lanes = [line for line in lines if isinstance(line, LaneRecord)]
    return RunData(
        header=header,
        lanes=_with_added(lanes, lines) if added else lanes,
        verdict=verdicts[-1] if verdicts else None,
        damaged_lines=damaged + bool(tail),
        path=file.parent,
        pairs=[line for line in lines if isinstance(line, PairRecord)],
    )


def read_header(folder: Path) -> RunHeader:
    """The header alone, cheap enough to look through every run. Raises `DamagedRun` if it cannot be read."""
    try:
        with (folder / RECORDS).open("rb") as file:
            header = _decoder.decode(file.readline())
    except (OSError, msgspec.DecodeError) as error:
        raise DamagedRun(f"{folder / RECORDS}: no readable header line: {error}") from error
    if not isinstance(header, RunHeader):
        raise DamagedRun(f"{folder / RECORDS}: the first line is no header")
    return header


class RunStore:
    """The one writer of a run. Holds the run's lock from construction to `close()`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunLocked(f"run {folder.name} is being written by another process") from None
        except OSError as error:
            raise _unwritable(folder, error) from error
        self._fd = -1

    @classmethod
    def create(cls, runs: Path, header: RunHeader) -> RunStore:
        """A new run below `runs`; its header is on disk when this returns."""
        _encoder.encode(header)  # a header that cannot be written must not leave a folder behind
        folder = runs / header.run
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        store = cls(folder)
        try:
            store._open(os.O_EXCL)
            store.append(header)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def reopen(cls, folder: Path) -> tuple[RunStore, RunData]:
        """Continue a run: a line cut short by a kill is cut off, and everything before it is returned."""
        store = cls(folder)
        try:
            run = load_run(folder)
            whole, tail = _split_tail(_read(folder / RECORDS))
            if tail:
                os.truncate(folder / RECORDS, len(whole))
            store._open()
        except BaseException:
            store.close()
            raise
        return store, run

    def _open(self, flags: int = 0) -> None:
        try:
            self._fd = os.open(self.folder / RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | flags, 0o644)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def append(self, line: Line) -> None:
        """Write one record and wait until it is on disk. On failure the file is as it was before the call."""
        data = memoryview(_encoder.encode(line) + b"\n")
        before = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            os.fsync(self._fd)
        except OSError as error:
            _undo(self._fd, before)
            raise IncompleteError(
                f"{self.folder / RECORDS} cannot be written: {error.strerror}. Everything recorded so far is kept; "
                "make room and give the same command again to resume"
            ) from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._lock.release()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def ensure_writable(runs: Path) -> None:
    """Raise `UsageError` now rather than after an hour of measuring."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs) as probe:
            probe.write(b"x")
    except OSError as error:
        raise _unwritable(runs, error) from error


def unit_id(cell: str, lane: str, launch: int = 0) -> str:
    """The name of what one worker records at a time: `<cell>#serving`, and `<cell>#serving/7` of the launch after six
    others.
    """
    return f"{cell}#{lane}" + (f"/{launch}" if launch else "")


def cell_of(unit: str) -> str:
    """The cell of a unit's name."""
    return unit.rpartition("#")[0]


def recorded_units(run: RunData) -> set[str]:
    return {unit_id(lane.cell, lane.lane, lane.launch) for lane in run.lanes}


def list_runs(runs: Path) -> list[Path]:
    """Every folder below `runs` that holds records, newest first (a run's id starts with its time)."""
    if not runs.is_dir():
        return []
    files = (folder / RECORDS for folder in runs.iterdir())
    begun = [file.parent for file in files if file.is_file() and file.stat().st_size]
    return sorted(begun, key=lambda folder: folder.name, reverse=True)


def _records_file(path: Path) -> Path:
    file = path / RECORDS if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"no run at {path}: expected a folder that holds {RECORDS}")
    return file


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def _split_tail(data: bytes) -> tuple[bytes, bytes]:
    """Whole lines, and what follows the last newline: a record that a kill or a full disk cut short."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _decode(whole: bytes) -> tuple[list[Line], int]:
    lines: list[Line] = []
    damaged = 0
    for raw in whole.splitlines():
        try:
            lines.append(_decoder.decode(raw))
        except msgspec.DecodeError:
            damaged += 1
    return lines, damaged


def _with_added(lanes: list[LaneRecord], lines: list[Line]) -> list[LaneRecord]:
    """Each lane with the gates that were decided after its worker ended, and the fate that they leave it."""
    last = {(line.cell, line.lane, line.launch): line for line in lines if isinstance(line, AddedGates)}

    def whole(lane: LaneRecord) -> LaneRecord:
        more = last.get((lane.cell, lane.lane, lane.launch))
        if more is None:
            return lane
        return msgspec.structs.replace(lane, gates=[*lane.gates, *more.gates], fate=more.fate, reason=more.reason)

    return [whole(lane) for lane in lanes]


def _undo(fd: int, size: int) -> None:
    with contextlib.suppress(OSError):  # a half line that stays is seen, and cut off when the run is resumed
        os.ftruncate(fd, size)


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"results folder {folder} cannot be written: {error.strerror}; name another with --results DIR")
