"""The anatomy of a decode step at every bucket: which part of it grew, when it did. It gates nothing.

It is read from a profile, in another pass than the timed one: a profiled step is slower than it says.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.engines.anatomy import Anatomy
from harness.engines.base import Phase
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import phase_of
from harness.probes.gates import not_applicable, report
from harness.probes.latency import full_batches
from harness.records import Phase as WorkerPhase

PARTS = ("dispatch", "staging", "launch", "replay", "gaps", "regions", "output")


class AnatomyProbe:
    name = "anatomy"

    def run(self, context: ProbeContext) -> ProbeResult:
        if phase_of(context) is not Phase.DECODE:
            return ProbeResult()
        context.enter(WorkerPhase.TIMING)
        found: dict[str, dict[str, Any]] = {}
        gates = []
        with torch.inference_mode():
            for bucket, batch in full_batches(context):
                anatomy = context.session.anatomy(batch)
                if anatomy is None:
                    return ProbeResult(gates=[not_applicable("anatomy", "the engine's steps cannot be taken apart")])
                found[str(bucket)] = anatomy.as_dict()
                gates.append(report(f"anatomy.{bucket}", sentence(bucket, anatomy)))
        return ProbeResult(gates=gates, counters={"anatomy": found})


def sentence(bucket: int, found: Anatomy) -> str:
    """The parts in the order of the step, in microseconds of one profiled step."""
    figures = {name: getattr(found, f"{name}_us") for name in PARTS}
    parts = ", ".join(f"{name} {us:.0f}" for name, us in figures.items() if us > 0)
    return f"one profiled step at bucket {bucket} takes {found.total_us:.0f} us by the {found.clock}'s clock: {parts}"
