"""A run as a summary for a code review or a job's page: verdict, worst facts, one row a cell.

A nightly that cut its table at the fiftieth row, in alphabetical order, hid the regressions in the rest. Here every
declared cell has its row, and what is wrong comes before the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from harness.report.fates import MARKS
from harness.report.figures import ABSENT, TimeUnit, clean
from harness.report.files import write_text
from harness.report.summary import Summary, status_counts
from harness.report.text import accounting_line, baseline_line
from harness.report.view import Matrix, buckets_of, sound
from harness.store import RunData

_WORST = 3
_SPECIAL = re.compile(r"([\\`*_\[\]#|~$]|^[-+>])")


def write_markdown(run: RunData, path: Path) -> None:
    """Write the summary to `path`, whole or not at all. Raises `UsageError` if the folder cannot be written."""
    write_text(path, render_markdown(run))


def render_markdown(run: RunData) -> str:
    summary = Summary.of(run)
    return "\n".join([*_head(summary), *_facts(summary), *(line for m in summary.matrices for line in _matrix(m)), ""])


def plain(text: str) -> str:
    """`text` on one line and without a meaning in Markdown or HTML."""
    one_line = " ".join(clean(text).split())
    return _SPECIAL.sub(r"\\\1", one_line.replace("&", "&amp;").replace("<", "&lt;"))


def _head(summary: Summary) -> Iterable[str]:
    header = summary.run.header
    yield f"## {MARKS[summary.tone]} {plain(summary.title)}"
    yield ""
    where = f"profile {header.profile}, device {header.device}, run {header.run}"
    yield f"**Exit code {summary.exit_code}**: {summary.exit_meaning}. {plain(where)}."
    yield ""
    yield from (f"- {plain(reason)}" for reason in summary.notes)
    yield f"- {', '.join(f'{n} {fate.value}' for fate, n in summary.fate_counts)}; {accounting_line(summary)}"
    yield f"- {plain(baseline_line(summary))}"
    yield from (f"- **the record contradicts itself**: {plain(doubt)}" for doubt in summary.doubts)
    yield ""


def _facts(summary: Summary) -> Iterable[str]:
    if not summary.facts:
        return
    yield "### Worst first"
    yield ""
    for number, fact in enumerate(summary.facts[:_WORST], 1):
        again = f" and {fact.again} more" if fact.again else ""
        what = f"{fact.cell.fate.value}, {fact.what}"
        yield f"{number}. **{plain(what)}** in {plain(fact.cell.label)}{again}: {plain(fact.sentence)}"
    left = len(summary.facts) - _WORST
    if left > 0:
        yield f"\n{left} more kinds of failure are in the report."
    yield ""


def _matrix(matrix: Matrix) -> Iterable[str]:
    for workload in matrix.workloads:
        cells = matrix.of_workload(workload)
        buckets = buckets_of(cells)
        unit = TimeUnit.fitting(x.median_us for cell in cells for x in cell.latency() if x.arm == "R")
        yield f"### {plain(workload)}, {plain(matrix.title)}"
        yield ""
        times = [f"bucket {bucket}, {unit.name}" for bucket in buckets]
        yield _row(["cell", "fate", "gates", *times])
        yield _row(["---", "---", "---", *("--:" for _ in times)])
        for cell in cells:
            steps = [cell.step(bucket) for bucket in buckets]
            spread = [
                unit.spread(x.median_us, x.p25_us, x.p75_us) if x and sound(x) else "not a measurement" if x else ABSENT
                for x in steps
            ]
            gates = status_counts(cell) if cell.lanes else cell.reason
            fate = f"{MARKS[cell.tone]} {cell.fate.value}"
            yield _row([plain(text) for text in (cell.short, fate, gates, *spread)])
        yield ""


def _row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"
