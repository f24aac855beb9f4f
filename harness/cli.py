"""The `harness` command. Every way in which it ends is one message and one of the exit codes of `harness.errors`."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from harness import errors
from harness.cells import find_cell
from harness.filters import Filters
from harness.listing import print_cells, print_coverage, print_findings, print_records
from harness.plan import Plan
from harness.signoff import Order, Run, plan_of, prepare
from harness.store import RunData, ensure_writable, list_runs, load_run

app = typer.Typer(
    help="Signs off the compilation and graph layers of an engine: every cell measured, compared and accounted for.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Profile = Annotated[str, typer.Option(help="A profile's name, or the path of a TOML file.")]
Engine = Annotated[list[str] | None, typer.Option(help="Engine under test; may be repeated.")]
Model = Annotated[list[str] | None, typer.Option(help="Model to serve; may be repeated.")]
Level = Annotated[list[int] | None, typer.Option(help="Compilation level, 0 to 3; may be repeated.")]
Mode = Annotated[list[str] | None, typer.Option(help="Graph mode, such as NONE or TR_HYBRID; may be repeated.")]
Workload = Annotated[list[str] | None, typer.Option(help="decode or prefill; may be repeated.")]
Ladder = Annotated[list[str] | None, typer.Option(help="Capture sizes with commas, such as 1,2,4; may be repeated.")]
Dtype = Annotated[str | None, typer.Option(help="Serving dtype in place of the profile's.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; the GPU if there is one.")]
Results = Annotated[Path, typer.Option(help="Folder that keeps the results.")]
Seed = Annotated[int | None, typer.Option(help="Seed of all inputs in place of the profile's.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew even if an unfinished run could be resumed.")]
RunName = Annotated[str | None, typer.Option("--run", help="A run's name or folder; the newest one by default.")]


@app.command()
def cells(
    profile: Profile = "quick",
    engine: Engine = None,
    model: Model = None,
    level: Level = None,
    mode: Mode = None,
    workload: Workload = None,
    ladder: Ladder = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Print the matrix, and for every size the mode and bucket that it runs in or why it runs eagerly."""
    with _one_ending():
        filters = _filters(engine, model, level, mode, workload, ladder, dtype)
        plan = plan_of(Order(profile, filters, device))
        console = _console()
        print_cells(plan, console)
        print_coverage(plan, console)


@app.command()
def run(
    profile: Profile = "quick",
    engine: Engine = None,
    model: Model = None,
    level: Level = None,
    mode: Mode = None,
    workload: Workload = None,
    ladder: Ladder = None,
    dtype: Dtype = None,
    device: Device = None,
    results: Results = Path("results"),
    seed: Seed = None,
    fresh: Fresh = False,
) -> None:
    """Measure and record the cells without judging them; `signoff` judges."""
    with _one_ending():
        filters = _filters(engine, model, level, mode, workload, ladder, dtype, seed)
        order = Order(profile, filters, device, results, fresh, _command())
        _, data = _execute(order, "run")
        print_records(data, _console())


@app.command()
def signoff(
    profile: Profile = "quick",
    engine: Engine = None,
    model: Model = None,
    level: Level = None,
    mode: Mode = None,
    workload: Workload = None,
    ladder: Ladder = None,
    dtype: Dtype = None,
    device: Device = None,
    results: Results = Path("results"),
    seed: Seed = None,
    fresh: Fresh = False,
) -> None:
    """Measure, judge and report: one verdict for each cell and one for the release, as the exit code says."""
    with _one_ending():
        from harness.report.text import print_table

        filters = _filters(engine, model, level, mode, workload, ladder, dtype, seed)
        order = Order(profile, filters, device, results, fresh, _command())
        done, data = _execute(order, "signoff")
        assert data.verdict is not None
        console = _console()
        print_table(data, console)
        _say(console, f"report: {done.report()}")
        if data.verdict.exit_code:
            sys.exit(data.verdict.exit_code)


@app.command()
def explain(
    cell: Annotated[str, typer.Argument(help="A cell, or enough of its name: `level=3,mode=FULL`.")],
    run: RunName = None,
    results: Results = Path("results"),
) -> None:
    """Print the evidence behind one cell's verdict."""
    with _one_ending():
        from harness.report import text

        data = load_run(_run_folder(run, results))
        try:
            found = find_cell(cell, data.header.cells)
        except ValueError as error:
            raise errors.UsageError(str(error)) from error
        text.explain(data, found, _console())


@app.command()
def doctor(device: Device = None, results: Results = Path("results")) -> None:
    """Say whether this machine can give the evidence, and what to do where it cannot."""
    with _one_ending():
        from harness.doctor import diagnose

        findings = diagnose(device, results=results)
        print_findings(findings, _console())
        if any(not f.ok and f.severity == "unfit" for f in findings):
            sys.exit(errors.UNFIT)


def main() -> None:
    """Entry point of the `harness` command."""
    app(prog_name="harness")


def _execute(order: Order, kind: str) -> tuple[Run, RunData]:
    """Plan, check the machine, execute; a sign-off is judged while the run is still locked."""
    console = _console()
    ensure_writable(order.runs)
    plan = plan_of(order)
    _refuse_unfit(plan, order, console)
    prepare(plan)
    current = Run(order, plan, kind, lambda text: _say(console, text))
    with current.store:
        try:
            current.execute(console)
        except KeyboardInterrupt:
            raise errors.IncompleteError(current.interrupted()) from None
        return current, current.conclude() if kind == "signoff" else load_run(current.folder)


def _refuse_unfit(plan: Plan, order: Order, console: Console) -> None:
    """Raise `UnfitError` where the machine cannot give the evidence; say what is merely worth knowing."""
    from harness.doctor import diagnose

    findings = [finding for finding in diagnose(plan.device, results=order.results) if not finding.ok]
    unfit = [f"{f.message} {f.way_out}".strip() for f in findings if f.severity == "unfit"]
    if unfit:
        raise errors.UnfitError("\n".join(unfit))
    for finding in findings:
        _say(console, f"{finding.severity}: {finding.message} {finding.way_out}".rstrip())


def _run_folder(run: str | None, results: Path) -> Path:
    if run is not None:
        named = results / "runs" / run
        return named if named.is_dir() else Path(run)
    newest = next(iter(list_runs(results / "runs")), None)
    if newest is None:
        raise errors.UsageError(f"no run below {results / 'runs'}; make one with `harness signoff`")
    return newest


def _filters(
    engine: list[str] | None,
    model: list[str] | None,
    level: list[int] | None,
    mode: list[str] | None,
    workload: list[str] | None,
    ladder: list[str] | None,
    dtype: str | None,
    seed: int | None = None,
) -> Filters:
    lists = (engine or [], model or [], level or [], mode or [], workload or [], ladder or [])
    return Filters(*lists, dtype=dtype, seed=seed)


def _command() -> tuple[str, ...]:
    return ("harness", *sys.argv[1:])


def _console() -> Console:
    """Output to a file or a pipe is not folded at the width of a terminal that is not there."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _one_ending() -> Iterator[None]:
    """Turn every way in which a command can end badly into one message on stderr and its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        yield
    except errors.HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print("harness: interrupted; whatever was recorded is kept", file=sys.stderr)
        code = errors.INCOMPLETE
    except Exception:
        traceback.print_exc()
        print("harness: a fault of the harness itself, see above; nothing is said about the engine", file=sys.stderr)
        code = errors.FAULT
    else:
        return
    sys.stdout.flush()
    sys.exit(code)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
