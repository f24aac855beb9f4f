"""A run in a terminal: one row a cell, what went wrong, and the verdict with its exit code last, where the eye ends up.

A log that ends in three hundred lines of green, with the one failure far above, is read as a pass. Text that comes
from an engine is printed as it is, never as markup: a message may hold square brackets.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from harness.report.explain import explain
from harness.report.fates import Tone
from harness.report.figures import ABSENT, TimeUnit, clean
from harness.report.summary import (
    GATED_WITHOUT_BASELINE,
    NOT_GATED_WITHOUT_BASELINE,
    Summary,
)
from harness.report.terminal import STYLES, mark
from harness.report.view import CellView, Matrix, buckets_of, sound
from harness.store import RunData

__all__ = ["accounting_line", "baseline_line", "explain", "print_table", "verdict_lines"]

_FACTS = 10
_REASONS = 6
_ONE_LINE_COLUMNS = 100  # below this a median and its quartiles take a line each


def print_table(run: RunData, console: Console) -> None:
    """Print every declared cell with its fate and step times, then what went wrong, then the verdict."""
    summary = Summary.of(run)
    for matrix in summary.matrices:
        for workload in matrix.workloads:
            console.print(_table(matrix, workload, console))
            console.print()
    _print_facts(summary, console)
    _print_doubts(summary, console)
    _print_verdict(summary, console)


def _table(matrix: Matrix, workload: str, console: Console) -> Table:
    cells = matrix.of_workload(workload)
    buckets = buckets_of(cells)
    unit = TimeUnit.fitting(x.median_us for cell in cells for x in cell.latency() if x.arm == "R")
    table = Table(
        title=Text(f"{workload}, {matrix.title}"),
        title_justify="left",
        caption=Text(f"step time of arm R in {unit.name}: median [quartiles] by bucket") if buckets else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("cell", no_wrap=True)
    table.add_column("fate", no_wrap=True)
    table.add_column("gates", justify="right", no_wrap=True)
    for bucket in buckets:
        table.add_column(str(bucket), justify="right")
    one_line = console.width >= _ONE_LINE_COLUMNS
    for cell in cells:
        times = [Text(_step(cell, bucket, unit, one_line)) for bucket in buckets]
        table.add_row(Text(cell.short), mark(cell.tone, cell.fate.value), Text(_gates(cell)), *times)
    return table


def _gates(cell: CellView) -> str:
    return f"{cell.passed_count}/{len(cell.judged)}" if cell.lanes else ABSENT


def _step(cell: CellView, bucket: int, unit: TimeUnit, one_line: bool) -> str:
    steps = cell.step(bucket)
    if steps is None:
        return ABSENT
    if not sound(steps):
        return "no samples" if not steps.samples_us else "not finite"
    text = unit.spread(steps.median_us, steps.p25_us, steps.p75_us)
    return text if one_line else text.replace(" ", "\n")


def _print_facts(summary: Summary, console: Console) -> None:
    if not summary.facts:
        return
    console.print(Text("Worst first", style="bold"))
    for number, fact in enumerate(summary.facts[:_FACTS], 1):
        again = f" and {fact.again} more {'cell' if fact.again == 1 else 'cells'}" if fact.again else ""
        head = fact.cell.fate.value if fact.what == fact.cell.fate.value else f"{fact.cell.fate.value}, {fact.what}"
        console.print(Text(f"{number}. ") + mark(fact.cell.tone, head) + Text(f" in {fact.cell.label}{again}"))
        console.print(Padding(Text(clean(fact.sentence)), (0, 0, 0, 3), expand=False))
        console.print(Text(f"   harness explain {fact.cell.id}", style="dim"), soft_wrap=True)
    left = len(summary.facts) - _FACTS
    if left > 0:
        console.print(Text(f"{left} more kinds of failure; the report lists them cell by cell"))
    console.print()


def _print_doubts(summary: Summary, console: Console) -> None:
    if not summary.doubts:
        return
    console.print(Text("The record contradicts itself", style=STYLES[Tone.BAD]))
    for doubt in summary.doubts:
        console.print(Text(f"- {clean(doubt)}"))
    console.print()


def _print_verdict(summary: Summary, console: Console) -> None:
    lines = Text("\n").join(verdict_lines(summary))
    if not console.is_terminal:
        console.print(mark(summary.tone, summary.title))
        console.print(lines)
        return
    style = STYLES[summary.tone]
    console.print(Panel(lines, title=mark(summary.tone, summary.title), title_align="left", border_style=style))


def verdict_lines(summary: Summary) -> Iterable[Text]:
    """The verdict below its title: exit code, reasons, what was not gated, and whether the units add up."""
    yield Text(f"exit code {summary.exit_code}: {summary.exit_meaning}", style="bold")
    for reason in summary.reasons[:_REASONS]:
        yield Text(f"- {clean(reason)}")
    if len(summary.reasons) > _REASONS:
        yield Text(f"- and {len(summary.reasons) - _REASONS} more reasons")
    yield Text(", ".join(f"{n} {fate.value}" for fate, n in summary.fate_counts))
    yield Text(accounting_line(summary), style="" if summary.accounting.balanced else STYLES[Tone.BAD])
    yield Text(baseline_line(summary))


def accounting_line(summary: Summary) -> str:
    """`units: 20 expected = 20 executed = 20 stored = 20 reported`"""
    a = summary.accounting
    steps = [(a.expected, "expected"), (a.executed, "executed"), (a.stored, "stored"), (a.reported, "reported")]
    text = f"{steps[0][0]} expected"
    for (before, _), (count, name) in pairwise(steps):
        text += f" {'=' if before == count else '≠'} {count} {name}"
    return f"units: {text}" + ("" if a.stored == a.recounted else f"; the file holds {a.recounted}")


def baseline_line(summary: Summary) -> str:
    if summary.baseline:
        return f"baseline: {clean(summary.baseline)}"
    return (
        f"no baseline, so not gated: {'; '.join(NOT_GATED_WITHOUT_BASELINE)}. Gated without: {GATED_WITHOUT_BASELINE}."
    )
