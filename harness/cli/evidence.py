"""`harness explain`, `accept` and `export`: what a stored run holds, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness import errors
from harness.cells import find_cell
from harness.cli.app import app
from harness.cli.ending import console, run_folder, say
from harness.cli.options import Results, RunName, ends_well
from harness.store import list_runs, load_run


@app.command()
@ends_well
def explain(
    cell: Annotated[str, typer.Argument(help="A cell, or enough of its name: `level=3,mode=FULL,workload=decode`.")],
    run: RunName = None,
    results: Results = Path("results"),
) -> None:
    """Print the evidence behind one cell's verdict."""
    from harness.report import text

    data = load_run(run_folder(run, results))
    try:
        found = find_cell(cell, data.header.cells)
    except ValueError as error:
        raise errors.UsageError(str(error)) from error
    text.explain(data, found, console())


@app.command()
@ends_well
def accept(
    run: Annotated[str | None, typer.Argument(help="A run's name or folder; the newest one by default.")] = None,
    cell: Annotated[list[str] | None, typer.Option(help="Accept this cell alone; may be repeated.")] = None,
    results: Results = Path("results"),
) -> None:
    """Make a run's figures the baseline of its machine and profile: a file to review and commit."""
    from harness.accepting import accept_run

    for line in accept_run(run_folder(run, results), results, cell or []):
        say(line)


@app.command()
@ends_well
def export(
    format_name: Annotated[str, typer.Option("--format", help="csv, parquet, hud or asv.")] = "csv",
    out: Annotated[
        Path | None, typer.Option(help="File to write, or asv's folder; figures.<format> if left out.")
    ] = None,
    run: RunName = None,
    every: Annotated[bool, typer.Option("--all", help="Every stored run in place of one.")] = False,
    results: Results = Path("results"),
) -> None:
    """Write a run's figures for other tools: CSV, Parquet, rows of the PyTorch HUD, or asv's result files."""
    from harness.export import export as write
    from harness.history.commands import fill

    folders = list_runs(results / "runs") if every else [run_folder(run, results)]
    if format_name == "asv":
        return fill(folders, out or results / "asv", "", say)
    file = out or Path(f"figures.{format_name}")
    rows = write([load_run(folder) for folder in folders], format_name, file)
    say(f"{rows} rows of {len(folders)} runs in {file}")
    return None
