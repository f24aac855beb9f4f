"""What a run is held against besides its own gates: an accepted baseline, another revision, waivers.

A report that only said "PASS" let its reader believe that step times had been compared. What was gated, and what was
only shown, is part of the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec

from harness.baselines import Baseline, Entry, baseline_file, error_ratios, load_baseline, other_series
from harness.errors import UsageError
from harness.exact_counts import Change, changes, exact_counts, group_of
from harness.records import GateResult, LaneRecord, RunHeader, Status
from harness.waivers import Waiver

RATIO_TOLERANCE = 0.05  # measurement.md, G3: the compiler's error ratio against the stored one


def _today() -> date:
    return datetime.now(UTC).date()


@dataclass(frozen=True)
class Standing:
    """`baseline` is a sentence, empty without one. `problems` leave the run incomplete; `notes` are only said."""

    baseline: str = ""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    today: date = field(default_factory=_today)

    def add(self, *, baseline: str = "", notes: Iterable[str] = (), problems: Iterable[str] = ()) -> Standing:
        text = "; ".join(filter(None, [self.baseline, baseline]))
        return replace(self, baseline=text, notes=(*self.notes, *notes), problems=(*self.problems, *problems))


def find_baseline(header: RunHeader, results: Path) -> tuple[Baseline | None, str]:
    """The accepted baseline of this machine's series and this profile, or None and why there is none."""
    found = load_baseline(baseline_file(results, header.series, header.profile))
    if found is None:
        others = other_series(results, header.profile)
        elsewhere = f" Other machines have one: {', '.join(others)}." if others else ""
        return None, f"No baseline of profile {header.profile} for machine series {header.series}.{elsewhere}"
    if found.probes != header.probes:
        raise UsageError("the baseline was measured by other probes than this run; leave it out by --no-baseline")
    return found, ""


def hold_against(baseline: Baseline, header: RunHeader, standing: Standing) -> Standing:
    """The standing with what the baseline gates, and with every cell that one of the two does not have."""
    executed = [cell for cell in header.cells if cell not in header.declared]
    new = [cell for cell in executed if cell not in baseline.cells]
    gone = [cell for cell in baseline.cells if cell not in header.cells]
    notes: list[str] = []
    problems: list[str] = []
    if new:
        text = f"{len(new)} of {len(executed)} cells have no baseline yet, the first is {new[0]}: accept them."
        (problems if header.profile_text.get("baseline_required") else notes).append(text)
    if gone and not header.filters:
        problems.append(f"{len(gone)} cells of the baseline were not declared by this run, the first is {gone[0]}.")
    runs = sorted({entry.run for cell in executed for entry in baseline.cells.get(cell, {}).values()})
    text = (
        f"accepted from {', '.join(runs) or 'no cell of this run'}; gated: exact counts at zero change, G3 error ratio "
        f"within {RATIO_TOLERANCE}; step times are shown and not gated (`harness compare` gates them)"
    )
    return standing.add(baseline=text, notes=notes, problems=problems)


def baseline_gates(lane: LaneRecord, header: RunHeader, baseline: Baseline) -> list[GateResult]:
    """A lane's gates against its accepted entry; none if the lane measured nothing or has no entry."""
    entry = (baseline.cells.get(lane.cell) or {}).get(lane.lane)
    if entry is None or not lane.gates:
        return []
    if entry.dtype != lane.dtype:
        text = f"the baseline was measured in {entry.dtype} and this lane in {lane.dtype}"
        return [_gate("counter.baseline", Status.NOT_APPLICABLE, text)]
    now = exact_counts(lane)
    counted = {group_of(name) for name in now}
    groups = changes(entry.counts, now)
    counts = [_count_gate(group, found, entry, group in counted) for group, found in groups.items()]
    return [*counts, *_ratio_gates(lane, header, entry), *_latency_reports(lane, entry), *_artefact_report(lane, entry)]


def _count_gate(group: str, found: Sequence[Change], entry: Entry, counted: bool) -> GateResult:
    total = sum(name.startswith(f"{group}/") for name in entry.counts)
    if not counted:
        return _gate(f"counter.{group}", Status.FAIL, f"{entry.run} had {total} counts, and none was counted now")
    if not found:
        text = f"{total} counts are what {entry.run} had"
        return _gate(f"counter.{group}", Status.PASS, text, measured=0.0, threshold=0.0)
    better = all(change.better for change in found)
    family, word = ("unaccepted", "fewer than accepted, accept it") if better else ("counter", "changed")
    first = sorted(found, key=lambda change: change.better)[:3]
    more = f" and {len(found) - len(first)} more" if len(found) > len(first) else ""
    return _gate(
        f"{family}.{group}",
        Status.FAIL,
        f"{word} since {entry.run}: {', '.join(map(str, first))}{more}",
        measured=float(len(found)),
        threshold=0.0,
        evidence={change.name: [change.before, change.after, change.direction.value] for change in found},
    )


def _ratio_gates(lane: LaneRecord, header: RunHeader, entry: Entry) -> list[GateResult]:
    now, name = error_ratios(lane), "G3.baseline"
    if not entry.error_ratio:
        return []
    torch_then = entry.software.get("torch")
    torch_now = header.fingerprint.get("software", {}).get("torch")
    if (torch_then, entry.inputs) != (torch_now, header.inputs):
        text = f"another torch or other inputs than {entry.run} (torch {torch_then}, now {torch_now}): no same ratio"
        return [_gate(name, Status.NOT_APPLICABLE, text)]
    missing = sorted({*entry.error_ratio} - {*now})
    if missing:
        return [
            _gate(name, Status.FAIL, f"no error ratio of {', '.join(missing)} was measured, and {entry.run} has one")
        ]
    shift = {tensor: now[tensor] - then for tensor, then in entry.error_ratio.items()}
    worst = max(shift, key=lambda tensor: abs(shift[tensor]))
    text = f"e_C/e_E of {worst} is {now[worst]:.4f} and was {entry.error_ratio[worst]:.4f} in {entry.run}"
    inside = abs(shift[worst]) <= RATIO_TOLERANCE
    lower = not inside and max(shift.values()) <= RATIO_TOLERANCE
    return [
        _gate(
            "unaccepted.G3" if lower else name,
            Status.PASS if inside else Status.FAIL,
            text + (": a smaller error, to be accepted" if lower else ""),
            measured=shift[worst],
            threshold=RATIO_TOLERANCE,
        )
    ]


def _latency_reports(lane: LaneRecord, entry: Entry) -> list[GateResult]:
    gates = []
    for x in lane.latency:
        then = entry.latency_us.get(f"{x.arm}.{x.phase}.{x.bucket}")
        if then is not None and x.arm == "R":
            drift = x.median_us / then[1] - 1
            text = f"arm R at bucket {x.bucket}: {then[1]:g} us in {entry.run}, {x.median_us:.2f} us now; not gated"
            gates.append(
                _gate(f"latency.drift.{x.bucket}", Status.REPORT, f"{100 * drift:+.1f} %, {text}", measured=drift)
            )
    return gates


def _artefact_report(lane: LaneRecord, entry: Entry) -> list[GateResult]:
    """Whether what runs is what ran: the first question when a time has moved."""
    names = sorted({*entry.artefacts, *lane.artefacts})
    differ = [name for name in names if entry.artefacts.get(name) != lane.artefacts.get(name)]
    text = f"differ from {entry.run}: {', '.join(differ)}" if differ else f"all {len(names)} are those of {entry.run}"
    return [_gate("latency.artefacts", Status.REPORT, text, measured=float(len(differ)))] if names else []


def _gate(gate: str, status: Status, message: str, **more: object) -> GateResult:
    return msgspec.convert({"gate": gate, "status": status, "message": message, **more}, GateResult)
