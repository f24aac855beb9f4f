"""What a person sees while a run goes on: a bar on a terminal, one line for each step of the way anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from harness.records import LaneRecord, Phase
from harness.store import unit_id
from harness.verdicts import GREEN


class Show(Protocol):
    """A listener of the executor that can also pass on a note."""

    def note(self, text: str) -> None: ...
    def phase(self, unit: str, phase: Phase) -> None: ...
    def recorded(self, record: LaneRecord) -> None: ...


@contextmanager
def progress(console: Console, total: int, done: int) -> Iterator[Show]:
    """A bar if `console` is a terminal, plain lines otherwise. `done` of `total` units were recorded before."""
    if not console.is_terminal:
        yield _Lines(console, total, done)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Bar(bar, bar.add_task("starting", total=total, completed=done))


def record_line(record: LaneRecord) -> str:
    """`measured  level=3,ladder=1-2-4#serving  12.3 s`, with the reason where it is not green."""
    reason = "" if record.fate in GREEN else f": {record.reason}"
    return f"{record.fate.value:<9} {unit_id(record.cell, record.lane, record.launch)}  {record.seconds:.1f} s{reason}"


class _Lines:
    def __init__(self, console: Console, total: int, done: int) -> None:
        self._console, self._total, self._done = console, total, done
        self._at: tuple[str, Phase] | None = None

    def note(self, text: str) -> None:
        self._print(text)

    def phase(self, unit: str, phase: Phase) -> None:
        """Says where a unit is when it is long under way; the first phases are over in a moment."""
        if phase in (Phase.BUILD, Phase.CAPTURE, Phase.REPLAY, Phase.TIMING) and (unit, phase) != self._at:
            self._at = (unit, phase)
            self._print(f"{'':9}{phase.value:<9} {unit}")

    def recorded(self, record: LaneRecord) -> None:
        self._done += 1
        self._print(f"[{self._done:>3}/{self._total}] {record_line(record)}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def phase(self, unit: str, phase: Phase) -> None:
        self._bar.update(self._task, description=escape(f"{unit} {phase.value}"))

    def recorded(self, record: LaneRecord) -> None:
        self._bar.advance(self._task)
        if record.fate not in GREEN:
            self.note(record_line(record))
