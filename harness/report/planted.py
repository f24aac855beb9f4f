"""What is known of the gates themselves: the committed table of planted faults, for a report's reader.

A report full of green gates says nothing of gates that cannot fail. This one shows, beside the verdict, which faults
the same gates caught when they were planted, and on which device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.mutants.record import Record, Row, kept_records
from harness.mutants.runner import CHECKOUT

NOT_RUN = "not run"
MESSAGE = 110


@dataclass(frozen=True)
class Fault:
    """One planted fault: what came of it on each device, and what the gate said."""

    kind: str
    variant: str
    cpu: str
    gpu: str
    message: str


@dataclass(frozen=True)
class PlantedFaults:
    """`notes` say where and when, or why there is nothing."""

    notes: tuple[str, ...]
    faults: tuple[Fault, ...] = ()


def planted_faults(results: Path = CHECKOUT / "results", *, with_rows: bool = True) -> PlantedFaults:
    """The latest committed record of each device. A record that cannot be read fails no report. `with_rows`: every
    fault, and not their number alone.
    """
    try:
        records = kept_records(results)
    except HarnessError as error:
        return PlantedFaults((f"The kept table cannot be read: {error}",))
    if not records:
        return PlantedFaults(("No table of planted faults is kept: `harness mutants --keep` makes one.",))
    by_device = {record.device: {row.file: row for row in record.rows} for record in records}
    files = list(dict.fromkeys(row.file for record in records for row in record.rows))
    notes = [_note(record) for record in records]
    notes += [] if "cuda" in by_device else ["On a GPU: not run; no record is kept."]
    if not with_rows:
        return PlantedFaults((*notes, "Each of them is in docs/mutants.md."))
    return PlantedFaults(tuple(notes), tuple(_fault(file, by_device) for file in files))


def _note(record: Record) -> str:
    caught = sum(row.ok for row in record.rows)
    silent = sum(not row.control for row in record.rows)
    kinds = len({row.kind for row in record.rows if row.ok})
    total = len(record.rows)
    return (
        f"{'CPU' if record.device == 'cpu' else 'GPU'} ({record.machine}, {record.finished[:10]}): {caught} of {total} "
        f"planted faults of {kinds} kinds caught, {silent} of {total} controls silent."
    )


def _fault(file: str, by_device: dict[str, dict[str, Row]]) -> Fault:
    found = [rows[file] for rows in by_device.values() if file in rows]
    cpu, gpu = (_cell(by_device.get(device, {}).get(file)) for device in ("cpu", "cuda"))
    return Fault(found[0].kind, found[0].variant, cpu, gpu, _message(found))


def _cell(row: Row | None) -> str:
    if row is None:
        return NOT_RUN
    alarm = f", control fired {row.control.partition(':')[0]}" if row.control else ""
    return f"{row.state.value} by {row.gate}{alarm}" if row.gate else f"{row.state.value}{alarm}"


def _message(found: Sequence[Row]) -> str:
    """Its beginning: the page is a verdict of something else, and the whole message is in the record."""
    whole = next((row.message for row in found if row.message), "")
    return whole if len(whole) <= MESSAGE else f"{whole[:MESSAGE].rstrip()} …"
