"""`harness doctor`, `selftest` and `mutants`: whether machine, instrument and gates can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness import errors
from harness.cli.app import app
from harness.cli.ending import command_line, console, end_with, say
from harness.cli.options import Device, Model, Results, ends_well
from harness.cli.running import ready
from harness.filters import Filters
from harness.listing import print_findings
from harness.signoff import Order


@app.command()
@ends_well
def doctor(device: Device = None, results: Results = Path("results")) -> None:
    """Say whether this machine can give the evidence, and what to do where it cannot."""
    from harness.doctor import diagnose

    findings = diagnose(device, results=results)
    print_findings(findings, console())
    end_with(errors.UNFIT if any(not f.ok and f.severity == "unfit" for f in findings) else 0)


@app.command()
@ends_well
def selftest(
    full: Annotated[bool, typer.Option("--full", help="Hours: as many trials as a release wants.")] = False,
    model: Model = None,
    device: Device = None,
    results: Results = Path("results"),
) -> None:
    """Count the instrument's own false alarms and misses, with exact bounds."""
    from harness.selftest.command import run_selftest

    order = Order("selftest", Filters(model=model or []), device, results, True, command_line())
    if not run_selftest(ready(order), results, full=full, say=say):
        raise errors.HarnessFault("the self-test found a false alarm or a miss, see the lines marked ✗")


@app.command()
@ends_well
def mutants(
    only: Annotated[
        list[str] | None, typer.Argument(help="Kinds or file names, or pieces of them; all if none.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder with planted/ and mutants.toml.")] = Path("suites/mutants"),
    quick: Annotated[bool, typer.Option("--quick", help="The dozen that the test suite runs.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="The subset that is run on real graphs.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Mutants at a time.")] = 2,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what an earlier run of this code knows.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Put the record into results/records, and make the page.")
    ] = False,
    merge: Annotated[Path | None, typer.Option(help="Run nothing: keep this record of another machine.")] = None,
    render: Annotated[bool, typer.Option("--render", help="Run nothing: make docs/mutants.md anew.")] = False,
    device: Device = None,
    results: Results = Path("results"),
) -> None:
    """Plant every known kind of fault, one at a time, and say which gate saw it and what it said."""
    from harness.mutants import command

    if merge or render:
        made = command.keep(merge, results, folder) if merge else (command.render(folder, results),)
        return say(f"wrote {' and '.join(map(str, made))}")
    chosen = command.choose(folder, command.Choice(only or (), quick, gpu, device))
    run = command.MutantsRun(chosen, command.ground_of(folder, results, device), jobs, say)
    if not fresh:
        run.resume()
    code, file = command.run_and_print(run, console(), command_line())
    if keep:
        say(f"wrote {' and '.join(map(str, command.keep(file, results, folder)))}")
    return end_with(code)
