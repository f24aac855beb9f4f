"""`harness cells`, `run` and `signoff`: what will be measured, measuring it, and judging it."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.app import app
from harness.cli.ending import console, end_with, say
from harness.cli.options import BaselinePython, CandidatePython, Driven, Narrowed, takes
from harness.cli.running import execute
from harness.listing import print_cells, print_coverage, print_records
from harness.signoff import Order, plan_of

NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="Do not look for an accepted baseline, and say so.")]
Baseline = Annotated[str | None, typer.Option(help="Also time the engine against this revision (or `.`).")]
Candidate = Annotated[str | None, typer.Option(help="Revision to sign off; the checkout as it stands.")]


@app.command()
@takes(Narrowed)
def cells(wanted: Narrowed) -> None:
    """Print the matrix, and for every size the mode and bucket that it runs in or why it runs eagerly."""
    plan = plan_of(Order(wanted.profile, wanted.filters(), wanted.device))
    print_cells(plan, console())
    print_coverage(plan, console())


@app.command()
@takes(Driven)
def run(wanted: Driven) -> None:
    """Measure and record the cells without judging them; `signoff` judges."""
    _, data = execute(wanted.order(), "run")
    print_records(data, console())


@app.command()
@takes(Driven)
def signoff(
    wanted: Driven,
    no_baseline: NoBaseline = False,
    baseline: Baseline = None,
    candidate: Candidate = None,
    baseline_python: BaselinePython = None,
    candidate_python: CandidatePython = None,
) -> None:
    """Measure, judge and report: one verdict for each cell and one for the release, as the exit code says."""
    from harness.comparison.sides import Revisions
    from harness.report.text import print_table

    asked = any((baseline, candidate, baseline_python, candidate_python))
    pair = Revisions(baseline or ".", candidate or ".", baseline_python, candidate_python) if asked else None
    use_baseline = not (no_baseline or wanted.debug_replay)
    done, data = execute(wanted.order(use_baseline=use_baseline, revisions=pair), "signoff")
    assert data.verdict is not None
    print_table(data, console())
    say(f"report: {done.report()}")
    end_with(data.verdict.exit_code)
