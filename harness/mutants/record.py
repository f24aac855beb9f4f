"""What came of each planted fault, kept line by line, and the record of a whole run that is worth committing.

Twenty-five minutes of mutants were lost to a Ctrl-C at the forty-ninth. An outcome is on disk once it is known, and the
same command goes on from there as long as neither the code nor the mutant has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness import machine
from harness.errors import UsageError
from harness.mutants.findings import Finding
from harness.mutants.mutant import Mutant
from harness.mutants.runner import CHECKOUT, Ground, Outcome, State
from harness.report.files import write_text

OUTCOMES = "outcomes.jsonl"
RECORD = "mutants.json"
SCHEMA = 1


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One planted fault. `gates` says of every gate that judged its cell whether it failed; `key` what was run."""

    file: str
    kind: str
    variant: str
    state: State
    gate: str = ""
    message: str = ""
    others: list[str] = []
    control: str = ""  # what the control set off; empty if it was silent
    seconds: float = 0.0
    gates: dict[str, bool] = {}
    simulated: bool = False
    key: str = ""

    @property
    def ok(self) -> bool:
        return self.state in (State.CAUGHT, State.KNOWN)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A run on one machine. `command` made it; `minutes` are of the wall clock, with `jobs` children at a time."""

    schema: int = SCHEMA
    finished: str
    command: list[str]
    device: str  # "cpu" or "cuda"
    machine: str
    minutes: float
    jobs: int
    revision: dict[str, str]
    software: dict[str, Any]
    rows: list[Row]


def key_of(path: Path, ground: Ground) -> str:
    """Changes with the mutant, the profile, the device and every source file of this checkout."""
    parts = [path.read_bytes(), ground.profile.read_bytes(), str(ground.device).encode()]
    parts += [f"{name}={value}".encode() for name, value in sorted(machine.revision(CHECKOUT).items())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def row_of(path: Path, outcome: Outcome, key: str) -> Row:
    mutant, finding, alarm = outcome.mutant, outcome.finding, outcome.alarm
    return Row(
        file=path.stem,
        kind=mutant.kind,
        variant=mutant.variant,
        state=outcome.state,
        gate=finding.name if finding else "",
        message=_anywhere(finding.message) if finding else "",
        others=list(outcome.others),
        control=f"{alarm.name}: {_anywhere(alarm.message)}" if alarm else "",
        seconds=outcome.seconds,
        gates=dict(sorted(outcome.gates.items())),
        simulated=mutant.simulated,
        key=key,
    )


def _anywhere(message: str) -> str:
    """Paths below the checkout's root: a record may be kept, and names no folder of a machine."""
    return message.replace(f"{CHECKOUT}{os.sep}", "")


def outcome_of(row: Row, mutant: Mutant) -> Outcome:
    """The outcome that an earlier run left."""
    name, _, said = row.control.partition(": ")
    alarm = Finding(name, said) if row.control else None
    finding = Finding(row.gate, row.message) if row.gate else None
    return Outcome(mutant, row.state, finding, tuple(row.others), alarm, row.seconds, dict(row.gates))


def append(file: Path, row: Row) -> None:
    with file.open("ab") as stream:
        stream.write(msgspec.json.encode(row) + b"\n")


def rows_in(file: Path) -> list[Row]:
    """The rows that were written whole; a line that a kill cut short is run again."""
    found = []
    for line in file.read_bytes().splitlines() if file.is_file() else []:
        try:
            found.append(msgspec.json.decode(line, type=Row))
        except msgspec.DecodeError:
            continue
    return found


def folder_of(record: Record) -> str:
    """The folder below results/records: "cpu", or the GPU's name, such as "nvidia-h200"."""
    return "cpu" if record.device == "cpu" else "-".join(record.machine.partition(",")[0].lower().split())


def write_record(file: Path, record: Record) -> None:
    write_text(file, msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n")


def read_record(file: Path) -> Record:
    """Raises `UsageError` for a file that is no record, or one of a newer schema."""
    try:
        record = msgspec.json.decode(file.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{file} is no record of `harness mutants`: {error}") from error
    if record.schema > SCHEMA:
        raise UsageError(f"{file}: schema {record.schema} is newer than this harness reads ({SCHEMA})")
    return record


def kept_records(results: Path) -> list[Record]:
    """The records in results/records, the latest of each device, CPU first."""
    latest: dict[str, Record] = {}
    for file in sorted((results / "records").glob(f"*/{RECORD}")):
        record = read_record(file)
        held = latest.get(record.device)
        if held is None or record.finished > held.finished:
            latest[record.device] = record
    return [latest[device] for device in sorted(latest)]


def merged(old: Sequence[Row], new: Iterable[Row]) -> list[Row]:
    """`old` with the rows of `new` in place of those of the same file."""
    return list({row.file: row for row in [*old, *new]}.values())
