"""A run's figures in the formats that other people's dashboards read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.errors import UsageError
from harness.export import hud, table
from harness.store import RunData

#: Format -> writer of all runs into one file. asv keeps a folder, so it has a way of its own: `asv_results.backfill`.
WRITERS: dict[str, Callable[[list[RunData], Path], int]] = {
    "csv": table.write_csv,
    "parquet": table.write_parquet,
    "hud": hud.write_hud,
}


def export(runs: list[RunData], format_name: str, out: Path) -> int:
    """Write every published figure of `runs` to `out`; returns how many rows it has. An empty table is an error."""
    if format_name not in WRITERS:
        raise UsageError(f"format {format_name!r}: no such format; choose from {', '.join(WRITERS)}, asv")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        rows = WRITERS[format_name](runs, out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    if not rows:
        out.unlink(missing_ok=True)
        raise UsageError("nothing to export: no cell of these runs has a figure that may be published")
    return rows
