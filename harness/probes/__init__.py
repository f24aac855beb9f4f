"""Everything that is measured of one opened, captured cell."""

from __future__ import annotations

from harness.debug_replay import SKIPPED_PROBES, gates_left_out, is_debug_replay
from harness.probes.anatomy import AnatomyProbe
from harness.probes.audit import AuditProbe
from harness.probes.base import Probe, ProbeContext, ProbeResult
from harness.probes.calibration import CalibrationProbe
from harness.probes.counters import CountersProbe
from harness.probes.dispatch import ClaimProbe, PlanProbe
from harness.probes.floor import FloorProbe
from harness.probes.latency import LatencyProbe
from harness.probes.memory import MemoryProbe
from harness.probes.numerics import NumericsProbe
from harness.probes.retained import RetainedProbe
from harness.probes.staircase import StaircaseProbe
from harness.probes.trace import StepTrace
from harness.records import Phase

__all__ = ["ProbeContext", "ProbeResult", "measure"]


def measure(context: ProbeContext) -> ProbeResult:
    """Run every probe that the lane calls for: plan, numerics, claims, counters, memory, latency, audit, what is
    left behind, in this order.

    The session must have captured. What an engine raises passes through: the worker records it with the phase it
    happened in.
    """
    context.enter(Phase.REPLAY)
    trace = StepTrace()
    probes: list[Probe] = [
        PlanProbe(),
        NumericsProbe(trace),
        ClaimProbe(trace),
        CountersProbe(trace),
        MemoryProbe(),
    ]
    if context.lane == "serving" and context.launch == 0:
        # The float32 lane judges arithmetic; its times and its ledger are nobody's serving ones. A later launch asks
        # again for what differs from process to process on broken hardware, the answers.
        latency = LatencyProbe()
        probes += [CalibrationProbe(latency), latency, StaircaseProbe(latency), FloorProbe()]
        probes += [AuditProbe(), AnatomyProbe(), RetainedProbe()]  # last: they profile, and what is timed comes first
    result = ProbeResult()
    debug = is_debug_replay(context.capture)
    for probe in probes:
        if not (debug and probe.name in SKIPPED_PROBES):
            result.merge(probe.run(context))
    result.gates += gates_left_out() if debug else []
    return result
