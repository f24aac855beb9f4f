"""Exact counters of the driven steps and of the capture, gated at zero difference from their closed forms.

The engine's ledger is a claim: it is held here against what the cell implies and against the harness's own count of
steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from harness.engines.base import Arm, Phase
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import buckets_of, expected_route, mode_of, phase_of
from harness.probes.closed_forms import ModelFacts, differences, distinct_pieces, piece_forms, step_form
from harness.probes.gates import compared_nothing, judged, not_applicable, plural, report
from harness.probes.trace import DrivenStep, StepTrace
from harness.records import GateResult

#: Reasons that a graph mode's step may run eagerly, where the cell's own arithmetic says that it must.
EXPLAINED = {"batch_above_the_ladder", "tokens_above_every_prefill_bucket", "prefill_is_eager_in_this_mode"}


class CountersProbe:
    """Closed forms over every step that arm R was driven through, and over what `capture()` claims."""

    name = "counters"

    def __init__(self, trace: StepTrace) -> None:
        self.trace = trace

    def run(self, context: ProbeContext) -> ProbeResult:
        facts = ModelFacts.of(context.session.expected())
        steps = list(self.trace.of(Arm.R, phase_of(context)))
        gates = [
            *_step_gates(context, facts, steps),
            _fallback_gate(context, steps),
            _replay_share_gate(context, steps),
            _compiles_after_capture(self.trace),
            *_capture_gates(context, facts),
        ]
        return ProbeResult(gates=gates, counters=_totals(steps, context))


def _step_gates(context: ProbeContext, facts: ModelFacts, steps: list[DrivenStep]) -> list[GateResult]:
    names = [
        "segments",
        "regions",
        "copies.copy_in",
        "copies.handoff",
        "copies.output",
        "copies.padding",
        "copies.staging",
    ]
    if not steps:
        return [compared_nothing(f"closed.{name}", "arm R was never driven") for name in names]
    wrong: dict[str, list[str]] = {name: [] for name in names}
    for step in steps:
        size = step.rows if step.phase is Phase.PREFILL else step.batch
        form = step_form(facts, expected_route(context, size), step.phase, requests=step.batch, rows=step.rows)
        for name, text in differences(form, step.claim).items():
            wrong.setdefault(name, []).append(f"a {step.phase.value} step of {plural(step.rows, 'row')} made {text}")
    gates = []
    for name, texts in wrong.items():
        if name == "copies.staging" and not facts.staging:
            gates.append(
                not_applicable("closed.copies.staging", "the engine states no staging layout, so there is no form")
            )
            continue
        message = (
            f"{texts[0]}; {len(texts)} of {len(steps)} steps" if texts else f"exact in {plural(len(steps), 'step')}"
        )
        gates.append(judged(f"closed.{name}", not texts, message, measured=float(len(texts)), threshold=0.0))
    return gates


def _fallback_gate(context: ProbeContext, steps: list[DrivenStep]) -> GateResult:
    """A step of a graph mode runs eagerly only where its size demands it, and says why."""
    if mode_of(context) == "NONE":
        return not_applicable(
            "closed.fallbacks", "the cell's mode asks for no graph in this phase: nothing to fall back from"
        )
    if not steps:
        return compared_nothing("closed.fallbacks", "arm R was never driven")
    wrong = []
    for step in steps:
        size = step.rows if step.phase is Phase.PREFILL else step.batch
        reason = step.claim.get("fallback")
        if expected_route(context, size).bucket is not None:
            if reason is not None or not step.claim.get("segments"):
                wrong.append(f"a step of size {size} has a bucket and did not replay it (reason: {reason})")
        elif reason not in EXPLAINED:
            wrong.append(
                f"a step of size {size} ran eagerly for the reason {reason!r}, which its size does not explain"
            )
    message = f"{wrong[0]}; {len(wrong)} of {len(steps)} steps" if wrong else "no unexplained fallback"
    return judged("closed.fallbacks", not wrong, message, measured=float(len(wrong)), threshold=0.0)


def _replay_share_gate(context: ProbeContext, steps: list[DrivenStep]) -> GateResult:
    if mode_of(context) == "NONE":
        return not_applicable("closed.replay_share", "the cell's mode asks for no graph in this phase")
    sizes = [(step.rows if step.phase is Phase.PREFILL else step.batch, step) for step in steps]
    eligible = [step for size, step in sizes if expected_route(context, size).bucket is not None]
    if not eligible:
        return compared_nothing("closed.replay_share", "no driven step had a bucket")
    replayed = sum((step.claim.get("segments") or 0) > 0 for step in eligible)
    share = replayed / len(eligible)
    message = f"{replayed} of {plural(len(eligible), 'step')} with a bucket replayed it"
    return judged("closed.replay_share", share == 1.0, message, measured=share, threshold=1.0)


def _compiles_after_capture(trace: StepTrace) -> GateResult:
    """No arm compiles or recompiles once capture is over, whatever size it is driven in."""
    if not trace.steps:
        return compared_nothing("closed.compiles_after_capture", "no step was driven")
    counts = Counter[str]()
    for step in trace.steps:
        for name in ("compiles", "recompiles"):
            counts[f"{name} in arm {step.arm.value}"] += step.claim.get(name) or 0
    found = {name: count for name, count in counts.items() if count}
    message = (
        f"after capture: {', '.join(f'{count} {name}' for name, count in found.items())}"
        if found
        else f"nothing was compiled or traced again in {plural(len(trace.steps), 'step')} after capture"
    )
    total = float(sum(found.values()))
    return judged("closed.compiles_after_capture", not found, message, measured=total, threshold=0.0)


def _capture_gates(context: ProbeContext, facts: ModelFacts) -> list[GateResult]:
    return [_pieces_gate(context, facts), _recordings_gate(context, facts)]


def _pieces_gate(context: ProbeContext, facts: ModelFacts) -> GateResult:
    level = context.cell["level"]
    claimed: Mapping[str, int] = context.capture.get("compiles") or {}
    forms = piece_forms(facts, level)
    if not forms:
        return report("closed.compiles", f"level {level} has no closed form for its pieces; claimed: {dict(claimed)}")
    wrong = [
        f"{name} is {claimed.get(name)} instead of {want}" for name, want in forms.items() if claimed.get(name) != want
    ]
    if level == 3:
        wrong += _code_generation(claimed, facts)
    message = "; ".join(wrong) if wrong else f"compile counts follow from {facts.layers} layers at level {level}"
    return judged(
        "closed.compiles", not wrong, message, measured=float(len(wrong)), threshold=0.0, evidence=dict(claimed)
    )


def _code_generation(claimed: Mapping[str, int], facts: ModelFacts) -> list[str]:
    """Each piece is compiled, loaded or reused; cold, the identical ones compile once, warm none does."""
    compiled, loaded = claimed.get("num_inductor_compiles"), claimed.get("num_cache_hits")
    if compiled is None or loaded is None:
        return ["the capture does not claim num_inductor_compiles and num_cache_hits"]
    wrong = []
    if compiled > distinct_pieces(facts):
        wrong.append(
            f"Inductor ran {compiled} times for {distinct_pieces(facts)} distinct pieces; likely CACHEKEY: the "
            "key of a piece changes though its code does not"
        )
    reused = claimed.get("num_piece_reuses", 0)
    if compiled + loaded + reused < facts.split_ops + 1:
        wrong.append(
            f"{compiled} compiled, {loaded} loaded and {reused} reused do not make {facts.split_ops + 1} pieces"
        )
    if claimed.get("recompiles", 0) or claimed.get("graph_breaks", 0):
        breaks = claimed.get("graph_breaks", 0)
        wrong.append(f"{claimed.get('recompiles', 0)} recompiles and {breaks} graph breaks before capture")
    return wrong


def _recordings_gate(context: ProbeContext, facts: ModelFacts) -> GateResult:
    """Every recorded bucket has the segments and regions that its mode implies, and does something."""
    if mode_of(context) == "NONE":
        return not_applicable("closed.recordings", "the cell's mode records no graph for this phase")
    wrong = []
    for bucket in buckets_of(context):
        form = step_form(facts, expected_route(context, bucket), phase_of(context), requests=1, rows=bucket)
        for name, want in (("segments", form.segments), ("regions", form.regions)):
            got = _per_bucket(context.capture.get(name), bucket)
            if got != want:
                wrong.append(f"the recording of bucket {bucket} has {got} {name} instead of {want}")
        if not _per_bucket(context.capture.get("nodes"), bucket):
            wrong.append(f"the recording of bucket {bucket} has no nodes: its replay does nothing")
    message = (
        "; ".join(wrong[:4]) if wrong else f"segments and regions of {len(buckets_of(context))} recordings are exact"
    )
    return judged("closed.recordings", not wrong, message, measured=float(len(wrong)), threshold=0.0)


def _per_bucket(table: Mapping[Any, int] | None, bucket: int) -> int | None:
    """The capture's table may have been through JSON, which makes its keys text."""
    table = table or {}
    return table.get(bucket, table.get(str(bucket)))


def _totals(steps: list[DrivenStep], context: ProbeContext) -> dict[str, Any]:
    """Sums over the driven steps of arm R, and the engine's own totals beside them."""
    copies: dict[str, dict[str, int]] = {}
    for step in steps:
        for kind, count in (step.claim.get("copies") or {}).items():
            total = copies.setdefault(str(kind), {"count": 0, "bytes": 0})
            total["count"] += count["count"]
            total["bytes"] += count["bytes"]
    return {
        "driven_steps": len(steps),
        "replayed_steps": sum((step.claim.get("segments") or 0) > 0 for step in steps),
        "segments": sum(step.claim.get("segments") or 0 for step in steps),
        "regions": sum(step.claim.get("regions") or 0 for step in steps),
        "copies": copies,
        "fallbacks": dict(Counter(str(step.claim["fallback"]) for step in steps if step.claim.get("fallback"))),
        "per_bucket": _per_step(steps),
        "engine": dict(context.session.counters()),
    }


def _per_step(steps: list[DrivenStep]) -> dict[str, Any]:
    """One step's exact costs for each bucket that was replayed, and for each size that ran eagerly ("eager 5"): the
    figures that a baseline is held against.

    Without a recording a region is an ordinary call, which no engine need count.
    """
    table: dict[str, Any] = {}
    for step in steps:
        claim, replayed = step.claim, bool(step.claim.get("segments"))
        key = str(claim.get("bucket")) if replayed else f"eager {step.rows}"
        copies = {str(kind): dict(count) for kind, count in (claim.get("copies") or {}).items()}
        costs = {"segments": claim.get("segments") or 0, "copies": copies}
        table.setdefault(key, costs | ({"regions": claim.get("regions")} if replayed else {}))
    return table
