"""`harness mutants`: plant everything, say what came of each at once, and leave the table behind.

A list of planted faults that is shown only when all of them are done hides the one that hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from harness import machine
from harness.errors import FAILED, FAULT, PASS, UsageError
from harness.mutants.mutant import Mutant, find_mutants
from harness.mutants.page import page
from harness.mutants.record import (
    OUTCOMES,
    RECORD,
    Record,
    Row,
    append,
    folder_of,
    kept_records,
    key_of,
    merged,
    outcome_of,
    read_record,
    row_of,
    rows_in,
    write_record,
)
from harness.mutants.runner import CHECKOUT, Ground, Outcome, State, run_mutant
from harness.mutants.table import HEADINGS, rows, summary
from harness.report.files import write_text
from harness.store import ensure_writable

PROFILE = "mutants.toml"
PAGE = Path("docs/mutants.md")
SOFTWARE = ("python", "torch", "triton", "cuda", "rocm")


@dataclass(frozen=True)
class Choice:
    """Which mutants: those whose kind or file name holds one of `only`, of the dozen, of the GPU's subset."""

    only: Sequence[str] = ()
    quick: bool = False
    gpu: bool = False
    device: str | None = None

    def fits(self, path: Path, mutant: Mutant) -> bool:
        text = f"{mutant.kind} {path.stem}".lower()
        named = not self.only or any(word.lower() in text for word in self.only)
        on_gpu = (self.device or "").startswith("cuda")
        return (
            named
            and (mutant.quick or not self.quick)
            and (mutant.gpu or not self.gpu)
            and not (on_gpu and mutant.cpu_only)
        )


def choose(folder: Path, choice: Choice) -> dict[Path, Mutant]:
    """The mutants that fit, in the catalogue's order. Raises `UsageError` if none does."""
    everyone = find_mutants(folder)
    chosen = {path: mutant for path, mutant in everyone.items() if choice.fits(path, mutant)}
    if not chosen:
        asked = ", ".join(choice.only) or ("--gpu" if choice.gpu else "--quick")
        raise UsageError(f"no mutant fits {asked}; there are {', '.join(path.stem for path in everyone)}")
    return chosen


def ground_of(folder: Path, results: Path, device: str | None) -> Ground:
    """A new folder below `results/mutants` for the children's runs. Raises `UsageError` without a profile."""
    profile = (folder / PROFILE).resolve()
    if not profile.is_file():
        raise UsageError(f"{profile} is missing: it is the profile that every mutant is run on")
    ensure_writable(results)
    work = (results / "mutants" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}").resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work.parent / ".gitignore").write_text("*\n")  # what a faulty engine measured is nobody's record
    return Ground(profile, work, device)


def run_all(chosen: Mapping[Path, Mutant], ground: Ground, jobs: int) -> Iterator[tuple[Path, Outcome]]:
    """Every outcome as soon as it is known, `jobs` mutants at a time."""
    with ThreadPoolExecutor(max_workers=jobs) as executor:
        waiting: dict[Future[Outcome], Path] = {
            executor.submit(run_mutant, path, mutant, ground): path for path, mutant in chosen.items()
        }
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


class MutantsRun:
    """One run of the command over `chosen`. What an earlier run of the same code knows already is not run again."""

    def __init__(self, chosen: Mapping[Path, Mutant], ground: Ground, jobs: int, say: Callable[[str], None]) -> None:
        self.chosen, self.ground, self.jobs, self.say = chosen, ground, jobs, say
        self.keys = {path: key_of(path, ground) for path in chosen}
        self.rows: dict[Path, Row] = {}
        self.minutes = 0.0

    def resume(self) -> None:
        """Take over what earlier runs below the same folder left, where nothing has changed since."""
        files = sorted(self.ground.folder.parent.glob(f"*/{OUTCOMES}"))
        known = {(row.file, row.key): row for file in files for row in rows_in(file)}
        for path, key in self.keys.items():
            row = known.get((path.stem, key))
            if row is not None and row.ok:
                self._add(path, row)
        if self.rows:
            self.minutes = sum(row.seconds for row in self.rows.values()) / 60 / self.jobs
            self.say(f"{len(self.rows)} of {len(self.chosen)} are known from an earlier run of the same code (--fresh)")

    def run(self) -> list[Outcome]:
        """The outcomes in the catalogue's order."""
        begun = time.monotonic()
        left = {path: mutant for path, mutant in self.chosen.items() if path not in self.rows}
        for path, outcome in run_all(left, self.ground, self.jobs):
            self._add(path, row_of(path, outcome, self.keys[path]))
            said = f"{outcome.state.value:<13} {outcome.mutant.name}  {outcome.seconds:.0f} s"
            self.say(f"[{len(self.rows):3}/{len(self.chosen)}] {said}")
        self.minutes += (time.monotonic() - begun) / 60
        return [outcome_of(self.rows[path], mutant) for path, mutant in self.chosen.items()]

    def record(self, command: Sequence[str]) -> Record:
        facts = machine.fingerprint()
        device = self.ground.device or ("cuda" if facts["visible_gpus"] else "cpu")
        kind = device.partition(":")[0]
        gpu = facts["gpus"][0]["name"] if kind == "cuda" and facts["gpus"] else ""
        return Record(
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            command=list(command),
            device=kind,
            machine=f"{gpu + ', ' if gpu else ''}{facts['cpu']['usable_cores']} cores",
            minutes=round(self.minutes, 1),
            jobs=self.jobs,
            revision=dict(machine.revision(CHECKOUT)),
            software={name: facts["software"].get(name) for name in SOFTWARE if facts["software"].get(name)},
            rows=[self.rows[path] for path in self.chosen],
        )

    def _add(self, path: Path, row: Row) -> None:
        self.rows[path] = row
        append(self.ground.folder / OUTCOMES, row)


def run_and_print(run: MutantsRun, console: Console, command: Sequence[str]) -> tuple[int, Path]:
    """Run them, print each result and the table, write the record; returns the exit code and the record's file."""
    outcomes = run.run()
    _print(outcomes, console, run.say)
    file = run.ground.folder / RECORD
    record = run.record(command)
    write_record(file, record)
    run.say(
        f"{len(outcomes)} planted faults on {record.device}, {record.minutes:.0f} minutes with {run.jobs} at a time"
    )
    run.say(f"record: {file}; each child's run and output lie beside it")
    return exit_code(outcomes), file


def keep(file: Path, results: Path, folder: Path) -> tuple[Path, Path]:
    """Put a run's record into results/records, over the rows that are kept there of the same kind of machine, and make
    the page anew.
    """
    record = read_record(file)
    target = results / "records" / folder_of(record) / RECORD
    old = read_record(target).rows if target.is_file() else []
    files = {path.stem: number for number, path in enumerate(find_mutants(folder))}
    rows_kept = [row for row in merged(old, record.rows) if row.file in files]
    rows_kept.sort(key=lambda row: files[row.file])
    write_record(target, msgspec.structs.replace(record, rows=rows_kept))
    return target, render(folder, results)


def render(folder: Path, results: Path, target: Path | None = None) -> Path:
    """Make the page from the kept records and nothing else."""
    target = target or results.resolve().parent / PAGE
    write_text(target, page(find_mutants(folder), kept_records(results)))
    return target


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 if all are caught with silent controls; 5 where a mutant could not be planted or judged; else 1."""
    if any(outcome.state in (State.BROKEN, State.IDLE) for outcome in outcomes):
        return FAULT
    return PASS if outcomes and all(outcome.ok for outcome in outcomes) else FAILED


def _print(outcomes: Sequence[Outcome], console: Console, say: Callable[[str], None]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in rows(outcomes):
        table.add_row(*(text[:160].replace("[", "\\[") for text in row))
    console.print(table)
    for line in summary(outcomes):
        say(line)
