"""docs/mutants.md: every planted fault with what came of it on each kind of device, made from the committed records.

A table written by hand said "caught" for a mutant that had been renamed twice. This page has a row for every mutant in
the tree, and where no record knows it, the row says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.mutants.kinds import KINDS, NOT_YET
from harness.mutants.mutant import Mutant
from harness.mutants.record import Record, Row
from harness.mutants.runner import State
from harness.mutants.siblings import SIBLINGS

NOT_RUN = "not run"
_INTRO = """# Planted faults

Each row is a small change of the real engine or the real harness, made in a child process that runs `harness signoff`
on one cell of a two-layer model, and beside it the nearest legal change, its control. "caught" means that a gate which
the mutant names beforehand failed, and that the control failed none. `harness mutants --keep` makes the CPU's column,
`harness mutants --device cuda --gpu --keep` the GPU's, and `harness mutants --render` this page from the kept records.
"""


def page(mutants: Mapping[Path, Mutant], records: Sequence[Record]) -> str:
    """The whole page. `records` holds at most one of each device."""
    by_device = {record.device: {row.file: row for row in record.rows} for record in records}
    parts = [_INTRO, *_where(records), "", *_counts(mutants, by_device), "", *_table(mutants, by_device), ""]
    parts += ["## Message and reader", "", *_messages(mutants, by_device), ""]
    parts += ["## Gate by mutant", "", *_matrix(mutants, by_device), "", "## Siblings", "", *_siblings(), ""]
    parts += ["## Not yet", ""]
    parts += [f"- {name}: {reason}." for name, reason in NOT_YET.items()]
    return "\n".join(parts) + "\n"


def counts(mutants: Iterable[Mutant], rows: Mapping[str, Row], named: str) -> str:
    """One line: how many of the faults and of the eighteen kinds `rows` caught."""
    caught = [row for row in rows.values() if row.state is State.CAUGHT]
    kinds = {row.kind for row in caught}
    silent = sum(not row.control and row.state is not State.BROKEN for row in rows.values())
    total = len(list(mutants))
    return (
        f"{named}: {len(kinds)} of {len(KINDS)} kinds caught; {len(caught)} of {len(rows)} planted faults caught, "
        f"{silent} of {len(rows)} controls silent; {total - len(rows)} of {total} not run."
    )


def _where(records: Sequence[Record]) -> list[str]:
    lines = []
    for record in records:
        commit, dirty = record.revision.get("commit", "")[:12], record.revision.get("dirty") == "yes"
        software = ", ".join(f"{name} {version}" for name, version in record.software.items() if version)
        lines.append(
            f"- **{_title(record.device)}**: {record.machine}, {record.finished[:10]}, {record.minutes:.0f} minutes "
            f"with {record.jobs} at a time, commit {commit}{' with changes' if dirty else ''}, {software}; "
            f"`{' '.join(record.command)}`"
        )
    missing = [device for device in ("cpu", "cuda") if device not in {record.device for record in records}]
    return [*lines, *[f"- **{_title(device)}**: not run; no record is kept." for device in missing]]


def _counts(mutants: Mapping[Path, Mutant], by_device: Mapping[str, Mapping[str, Row]]) -> list[str]:
    known = {path.stem for path in mutants}
    lines = []
    for device, rows in by_device.items():
        here = {file: row for file, row in rows.items() if file in known}
        lines.append(counts(mutants.values(), here, _title(device)))
    return ["\n\n".join(lines)] if lines else ["No record is kept, so nothing is known."]


def _table(mutants: Mapping[Path, Mutant], by_device: Mapping[str, Mapping[str, Row]]) -> list[str]:
    head = ["kind", "variant", "CPU", "gate", "s", "control", "GPU", "gate", "s", "control"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for path, mutant in mutants.items():
        variant = f"{mutant.variant} (simulated)" if mutant.simulated else mutant.variant
        cells = [mutant.kind, variant, *_columns(by_device.get("cpu", {}).get(path.stem), "")]
        cells += _columns(by_device.get("cuda", {}).get(path.stem), mutant.cpu_only)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return lines


def _columns(row: Row | None, cannot: str) -> list[str]:
    if row is None:
        return [f"CPU only: {cannot}" if cannot else NOT_RUN, "", "", ""]
    more = f" (+{len(row.others)})" if row.others else ""
    return [row.state.value, row.gate + more, f"{row.seconds:.0f}", row.control or "silent"]


def _messages(mutants: Mapping[Path, Mutant], by_device: Mapping[str, Mapping[str, Row]]) -> list[str]:
    lines = []
    for path, mutant in mutants.items():
        lines.append(f"- **{mutant.name}** (`{path.stem}`): {mutant.changes}. Control: {mutant.control_is}")
        for device, rows in by_device.items():
            if path.stem in rows:
                lines.append(f"  - {_title(device)} says: {_cell(rows[path.stem].message) or 'nothing'}")
        lines.append(f"  - A reader learns: {mutant.says}")
    return lines


def _matrix(mutants: Mapping[Path, Mutant], by_device: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """By gate: in how many mutants' cells it was judged, and which it failed. Gates that failed none are named."""
    known = {path.stem for path in mutants}
    judged: dict[str, int] = {}
    failed: dict[str, set[str]] = {}
    for rows in by_device.values():
        for row in rows.values():
            for gate, bad in row.gates.items() if row.file in known else ():
                judged[gate] = judged.get(gate, 0) + 1
                if bad:
                    failed.setdefault(gate, set()).add(row.file)
    lines = ["| gate | judged | failed for |", "|---|---|---|"]
    lines += [f"| {gate} | {judged[gate]} | {', '.join(sorted(failed[gate]))} |" for gate in sorted(failed)]
    idle = sorted(set(judged) - set(failed))
    return [*lines, "", f"Judged and failed by no mutant: {', '.join(idle) or 'none'}."]


def _siblings() -> list[str]:
    """What else can go wrong in the same way, and the check for the whole of it. Tests lie below `suites/`."""
    lines = [
        "What else can go wrong in the same way, the check for all of it, and what shows it.",
        *("", "| kind | faults | check | shown by |", "|---|---|---|---|"),
    ]
    for entry in SIBLINGS:
        shown = ", ".join(f"`{name}`" for name in entry.shown_by) or "nothing"
        lines.append(f"| {entry.kind} | {_cell(entry.faults)} | {_cell(entry.check)} | {shown} |")
    return lines


def _title(device: str) -> str:
    return {"cpu": "CPU", "cuda": "GPU"}[device]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
