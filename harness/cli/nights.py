"""`harness nightly`, `history` and `backfill`: many runs, one after another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import errors
from harness.cli.app import app
from harness.cli.ending import command_line, end_with, run_folder, say
from harness.cli.options import (
    AsvMachine,
    AsvResults,
    DetectorName,
    Device,
    DriftLimit,
    Pinned,
    Profile,
    Results,
    StepLimit,
    ends_well,
)
from harness.cli.running import execute
from harness.filters import Filters
from harness.signoff import Order
from harness.store import RunData, list_runs

if TYPE_CHECKING:
    from harness.history.check import Limits


@app.command()
@ends_well
def history(
    profile: Annotated[str | None, typer.Option(help="Only runs of this profile.")] = None,
    source: Annotated[str, typer.Option(help="records, asv, or both.")] = "records",
    pinned: Pinned = "",
    step_limit: StepLimit = 0.05,
    drift_limit: DriftLimit = 0.03,
    detector: DetectorName = "auto",
    asv_results: AsvResults = None,
    results: Results = Path("results"),
) -> None:
    """Say what got dearer over the stored runs, at which commit, and which nights are missing."""
    from harness.history.commands import look_back

    limits = _limits(step_limit, drift_limit, pinned)
    end_with(look_back(results, asv_results, source, profile, limits, detector, say))


@app.command()
@ends_well
def backfill(
    run: Annotated[list[str] | None, typer.Option("--run", help="A run; may be repeated. All by default.")] = None,
    machine: AsvMachine = "",
    asv_results: AsvResults = None,
    results: Results = Path("results"),
) -> None:
    """Write asv's result files from stored records: an interrupted asv keeps nothing, these keep everything."""
    from harness.history.commands import fill

    folders = [run_folder(name, results) for name in run] if run else list_runs(results / "runs")
    fill(folders, asv_results or results / "asv", machine, say)


@app.command()
@ends_well
def nightly(
    profile: Profile = "nightly",
    device: Device = None,
    pinned: Pinned = "",
    step_limit: StepLimit = 0.05,
    drift_limit: DriftLimit = 0.03,
    detector: DetectorName = "auto",
    publish: Annotated[bool, typer.Option(help="Make asv's files and pages too, where asv is installed.")] = True,
    machine: AsvMachine = "",
    asv_results: AsvResults = None,
    results: Results = Path("results"),
) -> None:
    """Check the machine, measure and judge, publish, look back, and measure again what stands out once."""
    from harness.history.commands import make_night

    def measure(again: bool) -> RunData:
        return execute(Order(profile, Filters(), device, results, again, command_line()), "signoff")[1]

    asv_folder = (asv_results or results / "asv") if publish else None
    limits = _limits(step_limit, drift_limit, pinned)
    end_with(make_night(measure, results, asv_folder, limits, detector, say, machine).run())


def _limits(step: float, drift: float, pinned: str) -> Limits:
    from harness.history.check import Limits

    try:
        return Limits(step, drift, pinned)
    except ValueError as error:
        raise errors.UsageError(str(error)) from error
