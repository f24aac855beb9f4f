"""`harness mutants`: plant everything, say what came of each at once, and leave the table behind.

A list of planted faults that is shown only when all of them are done hides the one that hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.errors import FAILED, FAULT, PASS, UsageError
from harness.mutants.mutant import Mutant, find_mutants
from harness.mutants.runner import Ground, Outcome, State, run_mutant
from harness.mutants.table import HEADINGS, markdown, rows, summary
from harness.store import ensure_writable

PROFILE = "mutants.toml"
TABLE = "mutants.md"


def choose(folder: Path, only: Sequence[str], quick: bool) -> dict[Path, Mutant]:
    """The mutants whose kind or file name holds one of `only`. Raises `UsageError` if none does."""
    everyone = find_mutants(folder)
    chosen = {
        path: mutant
        for path, mutant in everyone.items()
        if (mutant.quick or not quick)
        and (not only or any(text.lower() in f"{mutant.kind} {path.stem}".lower() for text in only))
    }
    if not chosen:
        raise UsageError(
            f"no mutant fits {', '.join(only) or '--quick'}; there are {', '.join(path.stem for path in everyone)}"
        )
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


def run_all(chosen: Mapping[Path, Mutant], ground: Ground, jobs: int) -> Iterator[Outcome]:
    """Every outcome as soon as it is known, `jobs` mutants at a time."""
    with ThreadPoolExecutor(max_workers=jobs) as executor:
        waiting = [executor.submit(run_mutant, path, mutant, ground) for path, mutant in chosen.items()]
        try:
            for done in as_completed(waiting):
                yield done.result()
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def run_and_print(
    chosen: Mapping[Path, Mutant], ground: Ground, jobs: int, console: Console, say: Callable[[str], None]
) -> int:
    """Run them, print each result and the table, write the page, and return the exit code."""
    begun, outcomes = time.monotonic(), []
    for number, outcome in enumerate(run_all(chosen, ground, jobs), 1):
        outcomes.append(outcome)
        say(f"[{number:3}/{len(chosen)}] {outcome.state.value:<13} {outcome.mutant.name}  {outcome.seconds:.0f} s")
    order = list(chosen.values())
    outcomes.sort(key=lambda outcome: order.index(outcome.mutant))
    _print(outcomes, console, say)
    minutes = (time.monotonic() - begun) / 60
    where = f"{len(outcomes)} planted faults on {ground.device or 'the default device'}, {minutes:.0f} minutes."
    page = ground.folder / TABLE
    page.write_text(markdown(outcomes, where))
    say(f"table: {page}; each child's run and output lie beside it")
    return exit_code(outcomes)


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
