"""`harness accept`: a run's figures become the baseline, as a file whose diff is read before it is committed.

Expected values that were edited by hand drifted from what anybody had measured. They come from a recorded run or not
at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import debug_replay
from harness.baselines import accept, baseline_file, describe_changes, dump, load_baseline
from harness.cells import find_cell
from harness.errors import UsageError
from harness.report.files import write_text
from harness.store import load_run


def accept_run(folder: Path, results: Path, queries: Sequence[str]) -> Iterator[str]:
    """Write the baseline file and yield what to tell the user: what is new, what changed, what was left out."""
    run = load_run(folder)
    header = run.header
    if debug_replay.problems(header, run.lanes):
        raise UsageError(f"{header.run} is a debug replay: nothing in it was replayed or timed, so it is no baseline")
    try:
        cells = list(dict.fromkeys(find_cell(query, header.cells) for query in queries))
    except ValueError as error:
        raise UsageError(str(error)) from error
    file = baseline_file(results, header.series, header.profile)
    before = load_baseline(file)
    after, left_out = accept(folder, file, cells)
    changes = describe_changes(before, after)
    yield from changes
    yield from left_out
    write_text(file, dump(after))
    accepted = sum(entry.run == header.run for lanes in after.cells.values() for entry in lanes.values())
    dirty = " from a tree with uncommitted edits" if header.engine_revision.get("dirty_digest") else ""
    yield f"{accepted} lanes of {header.run} accepted{dirty}, {len(changes)} facts new or changed: {file}"
    yield "review it with `git diff` and commit it"
