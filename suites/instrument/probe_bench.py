"""Open a toy cell and measure it: what every test of the probes does first."""

from __future__ import annotations

from typing import Any

from harness.cells import Cell
from harness.engines.base import SessionSpec
from harness.probes import measure
from harness.probes.base import ProbeContext, ProbeResult
from harness.profile import Axes, Limits, Numerics, Profile, Timing
from harness.records import GateResult, Status
from suites.instrument.toy_session import ToySession, one_thread

LIMITS = Limits(max_num_seqs=5, max_model_len=64, block_size=8, num_blocks=48, eager_above_ladder=True)


def context_of(session_type: type[ToySession] = ToySession, **changes: Any) -> ProbeContext:
    """A level-3 TR_HYBRID decode cell over [1, 2, 4], unless `changes` say otherwise."""
    level, mode = changes.get("level", 3), changes.get("mode", "TR_HYBRID")
    workload, ladder = changes.get("workload", "decode"), changes.get("ladder", [1, 2, 4])
    dtype = changes.get("dtype", "float32")
    limits = changes.get("limits", LIMITS)
    numerics = Numerics(input_sets=changes.get("input_sets", 6), replays=2, soak_steps=changes.get("soak_steps", 0))
    axes = Axes(model=["toy"], level=[level], mode=[mode], workload=[workload], ladder=[ladder])
    profile = Profile(
        name="toy",
        title="toy",
        axes=axes,
        limits=limits,
        prefill_sizes=[8, 24],
        numerics=numerics,
        timing=Timing(warmup_steps=1, samples=changes.get("samples", 5)),
    )
    cell = Cell.of(model="toy", level=level, mode=mode, workload=workload, ladder=ladder)
    spec = SessionSpec(
        dtype=dtype,
        device="cpu",
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        prefill_sizes=(8, 24) if mode in ("TR_HYBRID", "NONE") else (),
        eager_above_ladder=limits.eager_above_ladder,
    )
    session = session_type(cell, spec)
    return ProbeContext(session, cell, spec, profile, changes.get("lane", "serving"), "cpu", dict(session.capture()))


def measured(session_type: type[ToySession] = ToySession, **changes: Any) -> ProbeResult:
    with one_thread():
        return measure(context_of(session_type, **changes))


def gate(result: ProbeResult, name: str) -> GateResult:
    found = [g for g in result.gates if g.gate == name]
    assert len(found) == 1, f"{name} occurs {len(found)} times in {[g.gate for g in result.gates]}"
    return found[0]


def failed(result: ProbeResult) -> set[str]:
    return {g.gate for g in result.gates if g.status is Status.FAIL}
