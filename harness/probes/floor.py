"""The time that no decode step can undercut: its weights and its cached keys and values, once through memory.

"Three times faster" said nothing until somebody divided: the step still took eight times what its bytes take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.engines.base import Phase, StepBatch
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import phase_of
from harness.probes.gates import not_applicable, report
from harness.probes.latency import full_batches
from harness.timing.bandwidth import bandwidth_bytes_s

NEEDED = ("weight_bytes", "kv_bytes_per_token")


class FloorProbe:
    """Gates nothing: a model that fits into a cache runs below this floor, and says so."""

    name = "floor"

    def run(self, context: ProbeContext) -> ProbeResult:
        if phase_of(context) is not Phase.DECODE:
            return ProbeResult()
        facts = context.session.expected()
        missing = [name for name in NEEDED if name not in facts]
        if missing:
            return ProbeResult(gates=[not_applicable("floor", f"the engine does not say its {missing[0]}")])
        speed = bandwidth_bytes_s(context.device)
        floors = {
            str(bucket): {"bytes": (nbytes := step_bytes(batch, facts)), "floor_us": nbytes / speed * 1e6}
            for bucket, batch in full_batches(context)
        }
        sizes = ", ".join(f"{entry['floor_us']:.0f} us at bucket {bucket}" for bucket, entry in floors.items())
        text = f"weights and cache once through memory at {speed / 1e9:.1f} GB/s, as measured here: {sizes}"
        return ProbeResult(
            gates=[report("floor", text)], counters={"floor": {"bandwidth_bytes_s": speed, "per_bucket": floors}}
        )


def step_bytes(batch: StepBatch, facts: Mapping[str, Any]) -> int:
    """Bytes that one decode step must read: every weight once, and the keys and values of every live context."""
    return int(facts["weight_bytes"]) + sum(batch.context_lens) * int(facts["kv_bytes_per_token"])
