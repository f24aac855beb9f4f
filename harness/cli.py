"""The `harness` command. Every way in which it ends is one message and one of the exit codes of `harness.errors`."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from harness import errors
from harness.cells import find_cell
from harness.filters import Filters
from harness.listing import print_cells, print_coverage, print_findings, print_records
from harness.plan import Plan
from harness.signoff import Order, Run, plan_of, prepare
from harness.store import RunData, ensure_writable, list_runs, load_run

if TYPE_CHECKING:
    from harness.history.check import Limits

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
NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="Do not look for an accepted baseline, and say so.")]
Pinned = Annotated[str, typer.Option(help="Commit of the pinned release: growth counts from it.")]
StepLimit = Annotated[float, typer.Option(help="Relative step that counts: 0.05 is 5 %.")]
DriftLimit = Annotated[float, typer.Option(help="Relative growth since the pinned release that counts.")]
DetectorName = Annotated[str, typer.Option(help="Change points by e-divisive, asv, or auto: the best installed.")]
AsvResults = Annotated[Path | None, typer.Option(help="asv's results folder; `asv` below --results by default.")]
BaselinePython = Annotated[str | None, typer.Option(help="Interpreter of the baseline; this one by default.")]
CandidatePython = Annotated[str | None, typer.Option(help="Interpreter of the candidate; this one by default.")]
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
    no_baseline: NoBaseline = False,
    baseline: Annotated[str | None, typer.Option(help="Also time the engine against this revision (or `.`).")] = None,
    candidate: Annotated[str | None, typer.Option(help="Revision to sign off; the checkout as it stands.")] = None,
    baseline_python: BaselinePython = None,
    candidate_python: CandidatePython = None,
) -> None:
    """Measure, judge and report: one verdict for each cell and one for the release, as the exit code says."""
    with _one_ending():
        from harness.comparison.sides import Revisions
        from harness.report.text import print_table

        filters = _filters(engine, model, level, mode, workload, ladder, dtype, seed)
        pair = (baseline, candidate, baseline_python, candidate_python)
        revisions = Revisions(baseline or ".", candidate or ".", *pair[2:]) if any(pair) else None
        order = Order(profile, filters, device, results, fresh, _command(), not no_baseline, revisions)
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
def compare(
    profile: Profile = "quick",
    baseline: Annotated[str, typer.Option(help="A revision, or `.` for the checkout as it stands.")] = ".",
    candidate: Annotated[str, typer.Option(help="A revision, or `.` for the checkout as it stands.")] = ".",
    baseline_python: BaselinePython = None,
    candidate_python: CandidatePython = None,
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
) -> None:
    """Time two revisions or interpreters against each other in fresh process pairs, and judge every cell."""
    with _one_ending():
        from harness.comparison.compare import compare_and_report
        from harness.comparison.sides import Revisions
        from harness.report.text import print_table

        filters = _filters(engine, model, level, mode, workload, ladder, dtype, seed)
        order, console = Order(profile, filters, device, results, True, _command()), _console()
        ensure_writable(order.runs)
        plan = plan_of(order)
        _refuse_unfit(plan, order, console)
        prepare(plan)
        wanted = Revisions(baseline, candidate, baseline_python, candidate_python)
        data, report = compare_and_report(order, plan, wanted, lambda text: _say(console, text))
        print_table(data, console)
        _say(console, f"report: {report}")
        if data.verdict is not None and data.verdict.exit_code:
            sys.exit(data.verdict.exit_code)


@app.command()
def accept(
    run: Annotated[str | None, typer.Argument(help="A run's name or folder; the newest one by default.")] = None,
    cell: Annotated[list[str] | None, typer.Option(help="Accept this cell alone; may be repeated.")] = None,
    results: Results = Path("results"),
) -> None:
    """Make a run's figures the baseline of its machine and profile: a file to review and commit."""
    with _one_ending():
        from harness.accepting import accept_run

        for line in accept_run(_run_folder(run, results), results, cell or []):
            _say(_console(), line)


@app.command()
def selftest(
    full: Annotated[bool, typer.Option("--full", help="Hours: as many trials as a release wants.")] = False,
    device: Device = None,
    results: Results = Path("results"),
) -> None:
    """Count the instrument's own false alarms and misses, with exact bounds."""
    with _one_ending():
        from harness.selftest.command import run_selftest

        console = _console()
        filters = Filters(level=[0], mode=["NONE", "FULL"], workload=["decode"])
        order = Order("tiny", filters, device, results, True, _command())
        ensure_writable(order.runs)
        plan = plan_of(order)
        _refuse_unfit(plan, order, console)
        prepare(plan)
        if not run_selftest(plan, results, full=full, say=lambda text: _say(console, text)):
            raise errors.HarnessFault("the self-test found a false alarm or a miss, see the lines marked ✗")


@app.command()
def doctor(device: Device = None, results: Results = Path("results")) -> None:
    """Say whether this machine can give the evidence, and what to do where it cannot."""
    with _one_ending():
        from harness.doctor import diagnose

        findings = diagnose(device, results=results)
        print_findings(findings, _console())
        if any(not f.ok and f.severity == "unfit" for f in findings):
            sys.exit(errors.UNFIT)


@app.command()
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
    with _one_ending():
        from harness.history.commands import look_back

        limits = _limits(step_limit, drift_limit, pinned)
        code = look_back(results, asv_results, source, profile, limits, detector, lambda text: _say(_console(), text))
        if code:
            sys.exit(code)


@app.command()
def export(
    format_name: Annotated[str, typer.Option("--format", help="csv, parquet or hud; asv has `backfill`.")] = "csv",
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("figures.csv"),
    run: RunName = None,
    every: Annotated[bool, typer.Option("--all", help="Every stored run in place of one.")] = False,
    results: Results = Path("results"),
) -> None:
    """Write a run's figures for other tools: CSV, Parquet, or rows of the PyTorch HUD."""
    with _one_ending():
        from harness.export import export as write

        folders = list_runs(results / "runs") if every else [_run_folder(run, results)]
        rows = write([load_run(folder) for folder in folders], format_name, out)
        _say(_console(), f"{rows} rows of {len(folders)} runs in {out}")


@app.command()
def backfill(
    run: Annotated[list[str] | None, typer.Option("--run", help="A run; may be repeated. All by default.")] = None,
    asv_results: AsvResults = None,
    results: Results = Path("results"),
) -> None:
    """Write asv's result files from stored records: an interrupted asv keeps nothing, these keep everything."""
    with _one_ending():
        from harness.history.commands import fill

        folders = [_run_folder(name, results) for name in run] if run else list_runs(results / "runs")
        fill(folders, asv_results or results / "asv", lambda text: _say(_console(), text))


@app.command()
def nightly(
    profile: Profile = "quick",
    device: Device = None,
    pinned: Pinned = "",
    step_limit: StepLimit = 0.05,
    drift_limit: DriftLimit = 0.03,
    detector: DetectorName = "auto",
    publish: Annotated[bool, typer.Option(help="Make asv's files and pages too, where asv is installed.")] = True,
    asv_results: AsvResults = None,
    results: Results = Path("results"),
) -> None:
    """Check the machine, measure and judge, publish, look back, and measure again what stands out once."""
    with _one_ending():
        from harness.history.commands import make_night

        def measure(again: bool) -> RunData:
            return _execute(Order(profile, Filters(), device, results, again, _command()), "signoff")[1]

        asv_folder = (asv_results or results / "asv") if publish else None
        say = lambda text: _say(_console(), text)  # noqa: E731
        night = make_night(measure, results, asv_folder, _limits(step_limit, drift_limit, pinned), detector, say)
        if code := night.run():
            sys.exit(code)


@app.command()
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
    with _one_ending():
        from harness.mutants import command

        console = _console()
        say = lambda text: _say(console, text)  # noqa: E731
        if merge or render:
            made = command.keep(merge, results, folder) if merge else (command.render(folder, results),)
            return say(f"wrote {' and '.join(map(str, made))}")
        chosen = command.choose(folder, command.Choice(only or (), quick, gpu, device))
        run = command.MutantsRun(chosen, command.ground_of(folder, results, device), jobs, say)
        if not fresh:
            run.resume()
        code, file = command.run_and_print(run, console, _command())
        if keep:
            say(f"wrote {' and '.join(map(str, command.keep(file, results, folder)))}")
        if code:
            sys.exit(code)


@app.command()
def bisect(
    good: Annotated[str, typer.Argument(help="A commit that was still fast.")],
    bad: Annotated[str, typer.Argument(help="A later commit that is slow.")] = "HEAD",
    perf: Annotated[bool, typer.Option("--perf", help="Judge by step time, the only judge there is so far.")] = True,
    profile: Profile = "quick",
    engine: Engine = None,
    model: Model = None,
    level: Level = None,
    mode: Mode = None,
    workload: Workload = None,
    device: Device = None,
    results: Results = Path("results"),
) -> None:
    """Find the first slower commit: each one is timed in fresh process pairs against the good one."""
    with _one_ending():
        from harness import bisect as search
        from harness.comparison.compare import compare_and_report
        from harness.comparison.sides import Revisions
        from harness.signoff import CHECKOUT

        filters, console = _filters(engine, model, level, mode, workload, None, None), _console()
        order = Order(profile, filters, device, results, True, _command())
        commits = search.commits_between(CHECKOUT, good, bad)
        ensure_writable(order.runs)
        plan = plan_of(order)
        _refuse_unfit(plan, order, console)
        prepare(plan)

        def judge(commit: str) -> search.Outcome:
            data, _ = compare_and_report(order, plan, Revisions(good, commit), lambda text: _say(console, text))
            outcome = search.outcome_of(commit, data)
            _say(console, f"{outcome.state.value}: {commit[:12]}: {outcome.reason}")
            return outcome

        code, text = search.lines(search.first_bad(commits, judge))
        for line in text:
            _say(console, line)
        sys.exit(code)


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


def _limits(step: float, drift: float, pinned: str) -> Limits:
    from harness.history.check import Limits

    try:
        return Limits(step, drift, pinned)
    except ValueError as error:
        raise errors.UsageError(str(error)) from error


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
