"""The plain lists that the command line prints besides the report: cells, coverage, records, findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from harness.checkup.finding import Finding
from harness.coverage import Coverage
from harness.plan import Plan, Unit
from harness.progress import record_line
from harness.stats import binomial_upper_bound
from harness.store import RunData


def print_cells(plan: Plan, console: Console) -> None:
    """One line a cell: what will happen to it, and in which lanes or why not."""
    profile = plan.profile
    _line(console, f"profile {profile.name}: {profile.title}")
    _line(console, f"{len(plan.cells)} cells, {len(plan.units)} units to execute on {plan.device}")
    if profile.launches > 1:
        bound = 100 * binomial_upper_bound(0, profile.launches)
        _line(
            console,
            f"{profile.launches} fresh launches a cell: none bad bounds bad launches below {bound:.3g} % (95 %)",
        )
    width = max(len(cell.id) for cell in plan.cells)
    for cell in plan.cells:
        lanes = ", ".join(_lanes(unit for unit in plan.units if unit.cell == cell))
        fate = "declared" if cell.id in plan.declared else "execute"
        _line(console, f"  {fate:<9} {cell.id:<{width}}  {plan.declared.get(cell.id, lanes)}")


def print_coverage(plan: Plan, console: Console) -> None:
    """Where every size runs. Cells that differ only in what cannot matter here (level, model) share their rows."""
    table = Table(title="Where every step runs", title_justify="left", box=None, pad_edge=False)
    for column in ("workload", "mode", "ladder", "sizes", "runs in"):
        table.add_column(column, overflow="fold")
    shown: set[tuple[object, ...]] = set()
    for cell, cover in zip(plan.cells, plan.coverage, strict=True):
        key = (cell["workload"], cell["mode"], cell["ladder"], cell["query_len"])
        if cell.id in plan.declared or key in shown:
            continue
        shown.add(key)
        ladder = ",".join(map(str, plan.profile.prefill_sizes if cover.unit == "tokens" else cell["ladder"] or ()))
        _add_spans(table, cover, [cell["workload"], cell["mode"], ladder])
    console.print()
    console.print(table, highlight=False)
    for cell_id, hole in plan.holes.items():
        _line(console, f"HOLE in {cell_id}: {hole}")


def print_records(run: RunData, console: Console) -> None:
    """What a run recorded, unjudged."""
    for record in run.lanes:
        _line(console, record_line(record))
    counts = f"{len(run.lanes)} of {len(run.header.units)} units recorded"
    _line(console, f"{counts} in {run.path}, none judged: `harness signoff` judges")


def print_findings(findings: Iterable[Finding], console: Console) -> None:
    for finding in findings:
        word = "ok" if finding.ok else finding.severity
        _line(console, f"{word:<6} {finding.name}: {finding.message} {'' if finding.ok else finding.way_out}".rstrip())


def _lanes(units: Iterable[Unit]) -> list[str]:
    """`60 x serving (bfloat16)`: lanes in plan order, with their launches."""
    launches = Counter(map(_lane, units))
    return [f"{count} x {lane}" if count > 1 else lane for lane, count in launches.items()]


def _lane(unit: Unit) -> str:
    return unit.lane if unit.lane == unit.dtype else f"{unit.lane} ({unit.dtype})"


def _add_spans(table: Table, cover: Coverage, start: list[str]) -> None:
    for span in cover.spans:
        unit = cover.unit if cover.query_len == 1 else f"{cover.unit} x {cover.query_len} tokens"
        table.add_row(*start, f"{span.sizes} {unit.rstrip('s') if span.sizes == '1' else unit}", span.where)
        start = ["", "", ""]


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
