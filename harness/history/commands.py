"""What the command line does with a history: look back over it, fill asv's folder from it, spend a night."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import harness
from harness.errors import UsageError
from harness.export.asv_results import backfill, discover
from harness.history.changepoints import choose_detector
from harness.history.check import Limits, check, lines
from harness.history.series import History, commit_times, history_of_asv, history_of_records
from harness.nightly import Night
from harness.store import RunData, load_run

CHECKOUT = Path(harness.__file__).resolve().parents[1]
Say = Callable[[str], None]
SOURCES = ("records", "asv", "both")


def look_back(
    results: Path, asv_results: Path | None, source: str, profile: str | None, limits: Limits, detector: str, say: Say
) -> int:
    """Print what the history says; returns its exit code. Raises UsageError for a history without a series."""
    if source not in SOURCES:
        raise UsageError(f"source {source!r}: no such source; choose from {', '.join(SOURCES)}")
    history = History(())
    if source != "asv":
        history += history_of_records(results / "runs", CHECKOUT, profile)
    if source != "records":
        history += history_of_asv(asv_results or results / "asv", commit_times(CHECKOUT))
    if not history.series:
        raise UsageError(f"no figures in {results}: make some with `harness nightly`, or name a folder with --results")
    report = check(history, limits, choose_detector(detector), datetime.now(UTC).date())
    for line in lines(report):
        say(line)
    return report.exit_code


def fill(folders: list[Path], asv_results: Path, machine: str, say: Say) -> None:
    """Backfill the runs in `folders`; `machine` names theirs in place of its hardware. Raises UsageError if none of
    them gave a row.
    """
    runs = [load_run(folder) for folder in folders]
    made = backfill(runs, CHECKOUT, asv_results, discover(CHECKOUT, asv_results), machine)
    for one in made:
        say(str(one))
    if not any(one.path for one in made):
        raise UsageError(f"none of {len(made)} runs has anything for asv, for the reasons above")


def make_night(
    measure: Callable[[bool], RunData],
    results: Path,
    asv_results: Path | None,
    limits: Limits,
    detector: str,
    say: Say,
    machine: str = "",
) -> Night:
    """A night over this checkout; without asv installed it publishes nothing."""
    if find_spec("asv") is None:
        asv_results = None
    return Night(measure, results, CHECKOUT, limits, choose_detector(detector), say, asv_results, machine)
