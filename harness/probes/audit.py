"""The auditor: one untimed step of each bucket, counted from outside and held against what the engine claims of it.

The ledger is written by the code that it is about. A stray `.clone()`, a graph that a variable switched off and a
segment that was counted twice all leave it looking right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import torch

from harness.engines.base import Arm, StepBatch
from harness.engines.base import Phase as DrivenPhase
from harness.engines.observed import Observed
from harness.probes import audit_rules
from harness.probes.audit_rules import Audited
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import expected_route, mode_of, phase_of
from harness.probes.gates import compared_nothing, judged, not_applicable, plural
from harness.probes.numerics import open_stream
from harness.probes.numerics.effort import Effort
from harness.records import GateResult, Phase

#: gate -> what it compares. Each rule says in phrases what departs.
RULES: dict[str, Callable[[Audited], list[str]]] = {
    "audit.launches": audit_rules.launches,
    "audit.regions": audit_rules.regions,
    "audit.nodes": audit_rules.nodes,
    "audit.staging": audit_rules.staging,
    "audit.output": audit_rules.output,
    "audit.copies": audit_rules.copies,
    "audit.operations": audit_rules.operations,
    "audit.mode": audit_rules.mode,
}


class AuditProbe:
    """Drives arms R and C once for each bucket. On a GPU it profiles, so it belongs after everything that is timed."""

    name = "audit"

    def run(self, context: ProbeContext) -> ProbeResult:
        context.enter(Phase.REPLAY)
        with torch.inference_mode():
            batches = _batches(context)
            steps = {size: _audited(context, batch) for size, batch in batches.items()}
            rearm = _rearm_gate(context, batches)
        counted = {size: step for size, step in steps.items() if step is not None}
        if steps and not counted:
            reason = "the engine's adaptor cannot count a step from outside, so its ledger stays a claim"
            return ProbeResult(gates=[not_applicable("audit", reason)])
        gates = [_gate(name, rule, counted) for name, rule in RULES.items()]
        figures = {str(size): _figures(step.replay) for size, step in counted.items()}
        gates += [_pool_gate(counted), _share_gate(context, counted), rearm]
        return ProbeResult(gates=gates, counters={"audit": figures})


def _batches(context: ProbeContext) -> dict[int, StepBatch]:
    """By bucket, the stream's first step for it; where graphs pad, the first one that leaves pad rows, if there is."""
    padded = mode_of(context) != "NONE"
    stream, _ = open_stream(context, Effort.of(context), recorded=padded)
    first, *later = islice(stream.rounds(), 2 if padded else 1)
    batches = {entry.bucket: entry for entry in first.sets}
    for entry in (entry for each in later for entry in each.sets):
        if entry.pad_rows and not batches[entry.bucket].pad_rows:
            batches[entry.bucket] = entry
    return {size: batches[size].batch for size in sorted(batches)}


def _audited(context: ProbeContext, batch: StepBatch) -> Audited | None:
    session = context.session
    size = batch.rows if phase_of(context) is DrivenPhase.PREFILL else len(batch.token_ids)
    bucket = expected_route(context, size).bucket
    replay = session.observed(batch, Arm.R)
    plain = session.observed(batch, Arm.C, rows=bucket)
    if replay is None or plain is None:
        return None
    return Audited(
        replay=replay,
        plain=plain,
        mode=mode_of(context),
        bucket=bucket,
        nodes=_claimed_nodes(context, bucket),
        clones=int(session.expected().get("clones_per_step", 0)),
    )


def _claimed_nodes(context: ProbeContext, bucket: int | None) -> int | None:
    """The capture's table may have been through JSON, which makes its keys text."""
    table: dict[Any, int] = context.capture.get("nodes") or {}
    return table.get(bucket, table.get(str(bucket)))


def _gate(name: str, rule: Callable[[Audited], list[str]], steps: Mapping[int, Audited]) -> GateResult:
    found = {size: texts for size, step in steps.items() if (texts := rule(step))}
    if not found:
        return judged(name, True, f"count and claim agree in {plural(len(steps), 'step')}", measured=0.0, threshold=0.0)
    size, texts = next(iter(found.items()))
    message = f"size {size}: {'; '.join(texts)}; {len(found)} of {plural(len(steps), 'audited step')} disagree"
    evidence = {str(size): texts for size, texts in found.items()}
    return judged(name, False, message, measured=float(len(found)), threshold=0.0, where=f"{size}", evidence=evidence)


def _pool_gate(steps: Mapping[int, Audited]) -> GateResult:
    """No step touches the recordings' pool but through its graphs. Values show that only where the block taken is one
    that a graph uses, and the next model's temporaries are others.
    """
    told = {size: step for size, step in steps.items() if step.replay.pool_use is not None}
    if not told:
        return not_applicable("audit.pool", "nothing is recorded, or the allocator does not tell what a pool hands out")
    return _gate("audit.pool", audit_rules.pool, told)


def _rearm_gate(context: ProbeContext, batches: Mapping[int, StepBatch]) -> GateResult:
    """Whether a replay hands anything but the KV cache's rows to the next one. Values show that only by luck."""
    gate = "audit.rearm"
    if mode_of(context) == "NONE":
        return not_applicable(gate, "the cell's mode asks for no graph in this phase")
    found = {size: context.session.carried_over(batch) for size, batch in batches.items()}
    told = {size: texts for size, texts in found.items() if texts is not None}
    if not told:
        return not_applicable(gate, "this device cannot tell what a recorded graph reads before it writes it")
    carried = {str(size): list(texts) for size, texts in told.items() if texts}
    if not carried:
        message = f"{plural(len(told), 'replay')} left nothing changed that the recording had read as found"
        return judged(gate, True, message, measured=0.0, threshold=0.0)
    size, texts = next(iter(carried.items()))
    message = f"size {size}: {texts[0]}: each replay starts from what the last one left"
    return judged(gate, False, message, measured=float(len(carried)), threshold=0.0, where=size, evidence=dict(carried))


def _share_gate(context: ProbeContext, steps: Mapping[int, Audited]) -> GateResult:
    """The replay share from launches that were counted, not claimed."""
    if mode_of(context) == "NONE":
        return not_applicable("audit.replay_share", "the cell's mode asks for no graph in this phase")
    eligible = [step for step in steps.values() if step.bucket is not None]
    if not eligible:
        return compared_nothing("audit.replay_share", "no audited step had a bucket")
    share = sum(step.replay.launches > 0 for step in eligible) / len(eligible)
    message = f"graphs were launched in {share:.0%} of {plural(len(eligible), 'audited step')} with a bucket"
    return judged("audit.replay_share", share == 1.0, message, measured=share, threshold=1.0)


def _figures(seen: Observed) -> dict[str, Any]:
    """What was counted, for baselines: a copy that the model makes in every arm shows as a change here."""
    copies: dict[str, dict[str, int]] = {}
    for copy in seen.copies:
        entry = copies.setdefault(f"{copy.place.value} {copy.op}", {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += copy.bytes
    return {
        "launches": seen.launches,
        "regions": seen.regions,
        "nodes": seen.nodes,
        "operations": sum(seen.operations.values()),
        "copies": copies,
    }
