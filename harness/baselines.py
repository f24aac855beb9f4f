"""Accepted baselines: what a release cost, one file for each kind of machine and profile, reviewed as a diff.

A rolling baseline forgave 1 % a night for ever, and after one bad night the bad run was the baseline. Nothing moves
here by itself: `harness accept` writes the file, and a person commits it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import UsageError
from harness.exact_counts import exact_counts
from harness.profile import Profile
from harness.records import PROTOCOL_VERSION, Fate, LaneRecord, RunHeader
from harness.store import RunData, cell_of, load_run, recorded_units

FOLDER = "baselines"
_PROMPTS = Path(__file__).parent / "prompts"


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lane of one cell as it was accepted. `latency_us` maps `arm.phase.bucket` to p25, median and p75."""

    run: str
    commit: str
    dirty_digest: str  # empty: the commit says it all
    dtype: str
    inputs: str
    software: dict[str, str]
    counts: dict[str, int]
    error_ratio: dict[str, float]  # e_C / e_E of G3, by tensor
    latency_us: dict[str, tuple[float, float, float]]
    artefacts: dict[str, str]


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cells`: cell id -> lane -> entry. `machine` is the fingerprint at the last accept, without passing facts."""

    protocol: str
    profile: str
    series: str
    device: str
    probes: str
    machine: dict[str, Any]
    cells: dict[str, dict[str, Entry]]


def inputs_digest(profile: Profile) -> str:
    """Equal for two runs whose models were fed the same: limits, seeds, effort and prompts."""
    digest = hashlib.sha256(msgspec.json.encode([profile.limits, profile.numerics, profile.prefill_sizes]))
    for file in sorted(_PROMPTS.iterdir()):
        digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()[:12]


def baseline_file(results: Path, series: str, profile: str) -> Path:
    return results / FOLDER / series / f"{profile}.json"


def load_baseline(file: Path) -> Baseline | None:
    """None without a file. Raises `UsageError` if it cannot be read or another protocol measured it."""
    if not file.is_file():
        return None
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Baseline)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"baseline {file} cannot be read: {error}; restore it, or leave it out by --no-baseline"
        ) from error
    if found.protocol != PROTOCOL_VERSION:
        raise UsageError(
            f"baseline {file} was measured by protocol {found.protocol} and this harness measures by "
            f"{PROTOCOL_VERSION}: accept a new one, or leave it out by --no-baseline"
        )
    return found


def other_series(results: Path, profile: str) -> list[str]:
    """Machine series that have a baseline of this profile."""
    return sorted(file.parent.name for file in (results / FOLDER).glob(f"*/{profile}.json"))


def dump(baseline: Baseline) -> str:
    """The file's text: keys sorted, one fact a line, so that a diff shows what changed and nothing else."""
    return msgspec.json.format(msgspec.json.encode(baseline, order="sorted"), indent=2).decode() + "\n"


def accept(folder: Path, file: Path, cells: Sequence[str] = ()) -> tuple[Baseline, list[str]]:
    """The baseline with a run's figures in place of the old, and one line for each cell that cannot be accepted.

    Raises `UsageError` if a cell named in `cells` cannot be, or if none can.
    """
    run = load_run(folder, added=False)
    _refuse_foreign(run.header)
    old = load_baseline(file)
    if old is not None and old.probes != run.header.probes:
        raise UsageError(f"{file} was measured by probes {old.probes!r} and the run by {run.header.probes!r}")
    refused = {cell: reason for cell in cells or run.header.cells if (reason := _unacceptable(cell, run))}
    if refused and (cells or len(refused) == len(run.header.cells)):
        raise UsageError("not accepted: " + "; ".join(f"{cell} {reason}" for cell, reason in refused.items()))
    taken = [cell for cell in cells or run.header.cells if cell not in refused]
    entries = {
        cell: {lane.lane: entry_of(lane, run.header) for lane in _of(cell, run.lanes) if lane.launch == 0}
        for cell in taken
    }
    kept = old.cells if old else {}
    return _whole(run.header, {**kept, **entries}), [f"left out: {cell} {reason}" for cell, reason in refused.items()]


def entry_of(lane: LaneRecord, header: RunHeader) -> Entry:
    latency = {
        f"{x.arm}.{x.phase}.{x.bucket}": (round(x.p25_us, 2), round(x.median_us, 2), round(x.p75_us, 2))
        for x in lane.latency
    }
    return Entry(
        run=header.run,
        commit=str(header.engine_revision.get("commit", "unknown")),
        dirty_digest=str(header.engine_revision.get("dirty_digest", "")),
        dtype=lane.dtype,
        inputs=header.inputs,
        software=dict(header.fingerprint.get("software", {})),
        counts=exact_counts(lane),
        error_ratio=error_ratios(lane),
        latency_us=latency,
        artefacts=dict(lane.artefacts),
    )


def error_ratios(lane: LaneRecord) -> dict[str, float]:
    """e_C / e_E of G3 by tensor; empty where the cell compiles nothing or no such step was run."""
    found = next((gate.evidence for gate in lane.gates if gate.gate == "G3"), {})
    ratios = {name.removesuffix("_ratio"): value for name, value in found.items() if name.endswith("_ratio")}
    return {name: round(float(value), 6) for name, value in ratios.items() if isinstance(value, (int, float))}


def describe_changes(old: Baseline | None, new: Baseline) -> list[str]:
    """What an accept changes, one line a fact, latencies beyond 1 % only; the file's diff has them all."""
    lines: list[str] = []
    for cell, lanes in sorted(new.cells.items()):
        for name, entry in sorted(lanes.items()):
            before = (old.cells.get(cell) or {}).get(name) if old else None
            if before is None:
                lines.append(f"{cell} ({name}): new, {len(entry.counts)} counts")
            elif before != entry:
                lines += [f"{cell} ({name}): {text}" for text in _entry_changes(before, entry)]
    return lines


def _entry_changes(before: Entry, after: Entry) -> Iterable[str]:
    for title, was, now in (
        ("", before.counts, after.counts),
        ("error ratio ", before.error_ratio, after.error_ratio),
        ("software ", before.software, after.software),
        ("artefact ", before.artefacts, after.artefacts),
    ):
        yield from _mapping_changes(title, was, now)
    for name in sorted({*before.latency_us, *after.latency_us}):
        old, new = before.latency_us.get(name), after.latency_us.get(name)
        if old is None or new is None:
            yield f"latency {name}: {'gone' if new is None else 'new'}"
        elif abs(new[1] / old[1] - 1) > 0.01:
            yield f"latency {name}: {old[1]:g} -> {new[1]:g} us ({100 * (new[1] / old[1] - 1):+.1f} %)"


def _mapping_changes(title: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[str]:
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            yield f"{title}{name}: {was.get(name, 'absent')} -> {now.get(name, 'absent')}"


def _refuse_foreign(header: RunHeader) -> None:
    if header.protocol != PROTOCOL_VERSION or not (header.series and header.inputs):
        raise UsageError(f"run {header.run} was measured by an older harness: sign off again and accept that run")
    if header.kind == "compare":
        raise UsageError(
            f"run {header.run} compares two engines and holds no counts; accept a run of `harness signoff`"
        )


def _unacceptable(cell: str, run: RunData) -> str:
    """Why a cell cannot become a baseline; a change against the last one is no reason, a gate of its own is."""
    if cell not in run.header.cells:
        return "is no cell of this run"
    if cell in run.header.declared:
        return "is declared unsupported"
    lanes = _of(cell, run.lanes)
    wanted = {unit for unit in run.header.units if cell_of(unit) == cell}
    if missing := sorted(wanted - recorded_units(run)):
        return f"has no record of lane {', '.join(unit.rpartition('#')[2] for unit in missing)}"
    bad = next((lane for lane in lanes if lane.fate is not Fate.MEASURED), None)
    return f"is {bad.fate.value}: {bad.reason}" if bad else ""


def _of(cell: str, lanes: Iterable[LaneRecord]) -> list[LaneRecord]:
    return [lane for lane in lanes if lane.cell == cell]


def _whole(header: RunHeader, cells: dict[str, dict[str, Entry]]) -> Baseline:
    return Baseline(
        protocol=header.protocol,
        profile=header.profile,
        series=header.series,
        device=header.device,
        probes=header.probes,
        machine={name: fact for name, fact in header.fingerprint.items() if name not in ("now", "environment")},
        cells=cells,
    )
