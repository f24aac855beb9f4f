"""`harness compare` and `bisect`: one engine against another, in fresh process pairs."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import app
from harness.cli.ending import command_line, console, end_with, say
from harness.cli.options import BaselinePython, CandidatePython, Matrix, Results, Sweep, takes
from harness.cli.running import ready
from harness.signoff import Order

Revision = Annotated[str, typer.Option(help="A revision, or `.` for the checkout as it stands.")]


@app.command()
@takes(Sweep)
def compare(
    wanted: Sweep,
    baseline: Revision = ".",
    candidate: Revision = ".",
    baseline_python: BaselinePython = None,
    candidate_python: CandidatePython = None,
) -> None:
    """Time two revisions or interpreters against each other in fresh process pairs, and judge every cell."""
    from harness.comparison.compare import compare_and_report
    from harness.comparison.sides import Revisions
    from harness.report.text import print_table

    order = wanted.order()
    sides = Revisions(baseline, candidate, baseline_python, candidate_python)
    data, report = compare_and_report(order, ready(order), sides, say)
    print_table(data, console())
    say(f"report: {report}")
    end_with(data.verdict.exit_code if data.verdict is not None else 0)


@dataclasses.dataclass(frozen=True)
class Searched(Matrix):
    results: Results = Path("results")


@app.command()
@takes(Searched)
def bisect(
    wanted: Searched,
    good: Annotated[str, typer.Argument(help="A commit that was still fast.")],
    bad: Annotated[str, typer.Argument(help="A later commit that is slow.")] = "HEAD",
    perf: Annotated[bool, typer.Option("--perf", help="Judge by step time, the only judge there is so far.")] = True,
) -> None:
    """Find the first slower commit: each one is timed in fresh process pairs against the good one."""
    from harness import bisect as search
    from harness.comparison.compare import compare_and_report
    from harness.comparison.sides import Revisions
    from harness.records import Status
    from harness.signoff import CHECKOUT

    order = Order(wanted.profile, wanted.filters(), wanted.device, wanted.results, True, command_line())
    commits = search.commits_between(CHECKOUT, good, bad)
    plan = ready(order)
    sought: dict[str, tuple[float, float]] = {}  # what the bad end, which is judged first, is slower in

    def judge(commit: str) -> search.Outcome:
        data, _ = compare_and_report(order, plan, Revisions(good, commit), say)
        outcome = search.without_the_step(search.outcome_of(commit, data), data, sought)
        if not sought:
            sought.update(search.intervals(data, Status.FAIL))
        say(f"{outcome.state.value}: {commit[:12]}: {outcome.reason}")
        return outcome

    code, text = search.lines(search.first_bad(commits, judge))
    for line in text:
        say(line)
    sys.exit(code)
