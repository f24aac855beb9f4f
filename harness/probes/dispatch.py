"""Where every possible step will run, and where the driven ones did run, against the harness's own arithmetic.

`bisect_right` in place of `bisect_left` moved every exact batch one bucket up: right answers, a third more work, all
tests green.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.coverage import Route
from harness.engines.base import Arm, Dispatch, Phase
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import buckets_of, expected_route, mode_of, phase_of
from harness.probes.gates import compared_nothing, judged, not_applicable, plural
from harness.probes.trace import DrivenStep, StepTrace
from harness.records import GateResult


class PlanProbe:
    """What `session.plan` promises for every size; nothing is run."""

    name = "dispatch.plan"

    def run(self, context: ProbeContext) -> ProbeResult:
        gates = [_plan_gate(context), _hole_gate(context), _ladder_gate(context)]
        return ProbeResult(gates=gates)


class ClaimProbe:
    """What the engine claims of the steps that arm R was driven through."""

    name = "dispatch.steps"

    def __init__(self, trace: StepTrace) -> None:
        self.trace = trace

    def run(self, context: ProbeContext) -> ProbeResult:
        steps = list(self.trace.of(Arm.R, phase_of(context)))
        if not steps:
            return ProbeResult(gates=[compared_nothing("dispatch.steps", "arm R was never driven")])
        wrong = [text for step in steps if (text := _disagreement(context, step))]
        message = (
            f"{wrong[0]}; {len(wrong)} of {plural(len(steps), 'driven step')} disagree"
            if wrong
            else f"{plural(len(steps), 'driven step')} ran in the mode and bucket that their sizes ask for"
        )
        return ProbeResult(
            gates=[judged("dispatch.steps", not wrong, message, measured=float(len(wrong)), threshold=0.0)]
        )


def sizes_of(context: ProbeContext) -> Iterable[int]:
    """Every batch that a scheduler can make; for prefill every token count up to the first past the largest bucket."""
    if phase_of(context) is Phase.PREFILL:
        room = context.spec.max_num_seqs * context.spec.max_model_len
        return range(1, min(max(buckets_of(context)) + 1, room) + 1)
    return range(1, context.spec.max_num_seqs + 1)


def _plan_gate(context: ProbeContext) -> GateResult:
    wrong: dict[str, list[int]] = {}
    sizes = list(sizes_of(context))
    for size in sizes:
        plan = _plan(context, size)
        text = _difference(expected_route(context, size), plan.mode, plan.bucket)
        if text:
            wrong.setdefault(text, []).append(size)
    unit = _unit(context)
    if not wrong:
        message = f"the engine plans all {len(sizes)} sizes of {unit} as the ladder asks"
        return judged("dispatch.plan", True, message, measured=0.0, threshold=0.0)
    parts = [f"{unit} {', '.join(map(str, members))}: {text}" for text, members in wrong.items()]
    count = sum(map(len, wrong.values()))
    return judged("dispatch.plan", False, "; ".join(parts[:8]), measured=float(count), threshold=0.0)


def _hole_gate(context: ProbeContext) -> GateResult:
    """Eager steps in a graph mode that no stated policy covers, and eager steps without a reason."""
    if mode_of(context) == "NONE":
        return not_applicable(
            "dispatch.holes", "the cell's mode records no graph for this phase, so nothing can fall through"
        )
    holes: list[int] = []
    silent: list[int] = []
    sizes = list(sizes_of(context))
    for size in sizes:
        plan = _plan(context, size)
        if plan.mode == "NONE":
            (silent if plan.declared and not plan.reason else []).append(size)
            if not plan.declared or expected_route(context, size).hole:
                holes.append(size)
    unit = _unit(context)
    if holes:
        message = (
            f"{unit} {', '.join(map(str, holes))} run eagerly and no stated policy says that they may; "
            "add a bucket, or set limits.eager_above_ladder"
        )
    elif silent:
        message = f"{unit} {', '.join(map(str, silent))} run eagerly and the engine gives no reason"
    else:
        message = f"each of {len(sizes)} sizes of {unit} has a bucket or a stated reason to run eagerly"
    return judged(
        "dispatch.holes", not (holes or silent), message, measured=float(len(holes) + len(silent)), threshold=0.0
    )


def _ladder_gate(context: ProbeContext) -> GateResult:
    """The buckets that the capture says it recorded are the ones that were asked for."""
    asked = buckets_of(context) if mode_of(context) != "NONE" else []
    found = sorted(context.capture.get("buckets", {}).get(phase_of(context).value, ()))
    if found == asked:
        message = f"recorded buckets: {asked}" if asked else "no bucket was recorded, as the mode asks"
        return judged("dispatch.ladder", True, message)
    missing, extra = sorted(set(asked) - set(found)), sorted(set(found) - set(asked))
    phase = phase_of(context).value
    message = f"{phase} buckets {found} were recorded and {asked} asked for: missing {missing}, extra {extra}"
    return judged("dispatch.ladder", False, message)


def _plan(context: ProbeContext, size: int) -> Dispatch:
    """A decode step of `size` requests, or a prefill of `size` tokens in as few requests as can hold them."""
    if phase_of(context) is Phase.PREFILL:
        return context.session.plan(Phase.PREFILL, -(-size // context.spec.max_model_len), size)
    return context.session.plan(Phase.DECODE, size, size)


def _unit(context: ProbeContext) -> str:
    return "tokens" if phase_of(context) is Phase.PREFILL else "batch"


def _difference(expected: Route, mode: str, bucket: int | None) -> str:
    if (mode, bucket) == (expected.mode, expected.bucket):
        return ""
    return f"{_route(mode, bucket)} instead of {_route(expected.mode, expected.bucket)}"


def _route(mode: str, bucket: int | None) -> str:
    return "eager" if mode == "NONE" else f"{mode} bucket {bucket}"


def _disagreement(context: ProbeContext, step: DrivenStep) -> str:
    """Where a driven step's claim departs from what its size asks for, in one phrase."""
    size = step.rows if step.phase is Phase.PREFILL else step.batch
    expected = expected_route(context, size)
    claim = step.claim
    text = _difference(expected, str(claim.get("effective_mode")), claim.get("bucket"))
    pads = (expected.bucket or step.rows) - step.rows
    if not text and (claim.get("live_rows"), claim.get("padded_rows")) != (step.rows, pads):
        claimed = f"{claim.get('live_rows')} live and {claim.get('padded_rows')} pad rows"
        text = f"with a claim of {claimed} instead of {step.rows} and {pads}"
    return f"a step of {_unit(context)} {size} ran {text}" if text else ""
