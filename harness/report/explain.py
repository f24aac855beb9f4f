"""The evidence behind one cell's verdict, in a terminal.

A bare "fail" sends people to re-run a night's work to learn what was compared. Here every gate stands with its figure
and its limit, every count with its closed form, and a crash with its phase, stack and last output.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from harness.errors import UsageError
from harness.records import LaneRecord
from harness.report.fates import FATE_MEANINGS, Tone, gate_title
from harness.report.figures import TimeUnit, clean, figure, flat, nbytes, seconds
from harness.report.summary import Summary, cell_command
from harness.report.svg import arm_sorted
from harness.report.terminal import STYLES, mark
from harness.report.view import CellView, GateView, sound, worst_first
from harness.store import RunData


def explain(run: RunData, cell_id: str, console: Console) -> None:
    """Print everything that decided `cell_id`. Raises `UsageError` if the run has no such cell."""
    summary = Summary.of(run)
    cell = next((cell for cell in summary.cells if cell.id == cell_id), None)
    if cell is None:
        known = "\n  ".join(other.id for other in summary.cells)
        raise UsageError(f"run {run.header.run} has no cell {cell_id!r}; its cells are\n  {known}")
    console.print(Text(clean(cell.id), style="bold"), soft_wrap=True)
    console.print(mark(cell.tone, cell.fate.value) + Text(f": {clean(cell.reason or FATE_MEANINGS[cell.fate])}"))
    for doubt in cell.doubts:
        console.print(Text(f"the record contradicts itself: {clean(doubt)}", style=STYLES[Tone.BAD]))
    for missing in cell.missing:
        console.print(Text(f"the {missing} lane left no record", style=STYLES[Tone.BAD]))
    for lane in cell.lanes:
        _print_lane(cell, lane, console)
    _heading(console, "To run only this cell")
    console.print(Text(f"  {cell_command(summary, cell)}"), soft_wrap=True)


def _print_lane(cell: CellView, lane: LaneRecord, console: Console) -> None:
    times = ", ".join(f"{name} {seconds(s)}" for name, s in lane.phase_seconds.items())
    _heading(console, f"{lane.lane} lane, {lane.dtype}: {lane.fate.value} after {seconds(lane.seconds)}")
    if times:
        console.print(Text(f"  {times}; largest resident set {nbytes(lane.peak_rss_mib * 2**20)}", style="dim"))
    _print_end(lane, console)
    gates = worst_first(gate for gate in cell.gates if gate.lane == lane.lane)
    _print_gates("Gates", [gate for gate in gates if not gate.is_count], "measured", "limit", console)
    _print_gates(
        "Counts against closed forms", [gate for gate in gates if gate.is_count], "counted", "closed form", console
    )
    _print_compiler(lane, console)
    _print_latency(lane, console)
    for title, tree in (("Capture", lane.capture), ("Counters", lane.counters), ("Artefacts", lane.artefacts)):
        _print_pairs(title, flat(tree), console)


def _print_end(lane: LaneRecord, console: Console) -> None:
    """How a lane that did not come to its end stopped: phase, reason, stack and last output."""
    if not (lane.stack or lane.output_tail):
        return
    _subheading(console, f"Ended in phase {lane.phase.value}")
    if lane.reason:
        console.print(Text(f"  {clean(lane.reason)}"))
    for title, text in (("stack", lane.stack), ("last output", lane.output_tail)):
        if text:
            console.print(Text(f"  {title}", style="dim"))
            console.print(Padding(Text(clean(text)), (0, 0, 0, 4), expand=False), soft_wrap=True)


def _print_compiler(lane: LaneRecord, console: Console) -> None:
    """What torch's compiler said, of a lane in which something failed."""
    said = lane.compiler
    if said is None:
        return
    _subheading(console, "What the compiler said")
    for title, texts in (("failed", said.failures), ("graph break", said.graph_breaks), ("recompile", said.recompiles)):
        for text in texts:
            console.print(Text(f"  {title}", style="dim"))
            console.print(Padding(Text(clean(text)), (0, 0, 0, 4), expand=False), soft_wrap=True)
    files = ", ".join(f"{count} {kind}" for kind, count in said.events.items()) or "no files"
    cut = f"; {said.left_out} more were left out for their size" if said.left_out else ""
    console.print(Text(f"  {clean(said.folder)}: {clean(files)}{cut}"), soft_wrap=True)
    for name, value in flat(said.counters):
        console.print(Text(f"    {clean(name)} = {clean(value)}", style="dim"))


def _print_gates(title: str, gates: list[GateView], found: str, limit: str, console: Console) -> None:
    _subheading(console, title)
    if not gates:
        console.print(Text("  none was recorded"))
    for gate in gates:
        console.print(Padding(_gate(gate, found, limit), (0, 0, 0, 2), expand=False))


def _gate(gate: GateView, found: str, limit: str) -> Group:
    result = gate.result
    figures = [f"{found} {figure(result.measured)}"] if result.measured is not None or gate.hollow else []
    figures += [f"{limit} {figure(result.threshold)}"] if result.threshold is not None else []
    head = mark(gate.tone, gate.word).append(f"  {clean(gate_title(result.gate))}", "bold")
    lines: list[RenderableType] = [
        head.append(f"  {', '.join(figures)}"),
        Padding(Text(clean(result.message)), (0, 0, 0, 4), expand=False),
    ]
    if result.where:
        lines.append(Padding(Text(f"at {clean(result.where)}", style="dim"), (0, 0, 0, 4), expand=False))
    lines += [
        Padding(Text(f"{clean(k)} = {clean(v)}", style="dim"), (0, 0, 0, 4), expand=False)
        for k, v in flat(result.evidence)
    ]
    return Group(*lines)


def _print_latency(lane: LaneRecord, console: Console) -> None:
    if not lane.latency:
        return
    steps = arm_sorted(lane.latency)
    unit = TimeUnit.fitting(x.median_us for x in steps)
    _subheading(console, f"Step time in {unit.name}: median [quartiles], fastest to slowest, samples")
    for x in steps:
        text = f"  bucket {x.bucket:>3}  {x.arm:<3}  "
        if sound(x):
            low, high = unit.alike(x.median_us, min(x.samples_us), max(x.samples_us))[1:]
            text += f"{unit.spread(x.median_us, x.p25_us, x.p75_us)}  {low} to {high}  {len(x.samples_us)}"
            console.print(Text(text))
        else:
            console.print(
                Text(f"{text}not a measurement: {len(x.samples_us)} samples, not all finite", STYLES[Tone.BAD])
            )


def _print_pairs(title: str, pairs: list[tuple[str, str]], console: Console) -> None:
    if not pairs:
        return
    _subheading(console, title)
    width = min(max(len(name) for name, _ in pairs), 44)
    for name, value in pairs:
        console.print(Text(f"  {clean(name):<{width}}  {clean(value)}"))


def _heading(console: Console, words: str) -> None:
    console.print()
    console.print(Text(clean(words), style="bold"))


def _subheading(console: Console, words: str) -> None:
    console.print(Text(f"  {words}", style="underline" if console.is_terminal else ""))
