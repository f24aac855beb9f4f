"""The timer is tried before it times a step, through the session's own synchronisation. If it fails, it times nothing.

On a CPU a device of known latency stands in, and the session is synchronised beside it. On a GPU the spins run on the
stream that the session must wait for, so that a session whose `synchronize` waits for nothing is found here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.gates import judged
from harness.probes.latency import LatencyProbe
from harness.records import Phase
from harness.timing.calibration import TOLERANCE, Calibration, calibrate, idle_to_idle_us
from harness.timing.fake_device import FakeDevice


class CalibrationProbe:
    """Calibrates `latency`'s clock and hands the outcome on to it."""

    name = "calibration"

    def __init__(self, latency: LatencyProbe) -> None:
        self.latency = latency

    def run(self, context: ProbeContext) -> ProbeResult:
        context.enter(Phase.TIMING)
        found = calibrations(context.device, context.session.synchronize, self.latency.clock)
        self.latency.calibration = found[0]
        return ProbeResult(
            gates=[
                judged(
                    f"calibration.{entry.name.replace(' ', '_')}",
                    entry.ok,
                    f"{entry}" if entry.ok else f"{entry}: so nothing is timed here",
                    measured=entry.slope,
                    threshold=1 + TOLERANCE,
                    evidence={str(kernels): us for kernels, us in entry.readings_us},
                )
                for entry in found
            ],
            counters={"calibration": {entry.name: as_dict(entry) for entry in found}},
        )


def calibrations(device: str, synchronize: Callable[[], None], clock: Callable[[], int]) -> list[Calibration]:
    """The host clock's, which times the steps, and on a GPU that of the device's events."""
    if device != "cuda":
        fake = FakeDevice()

        def both() -> None:
            fake.synchronize()
            synchronize()

        try:
            return [calibrate("host clock", fake, lambda work: idle_to_idle_us(work, both, clock))]
        finally:
            fake.close()
    from harness.timing.gpu_spin import event_us, gpu_spin

    spin = gpu_spin()
    try:
        host = calibrate("host clock", spin, lambda work: idle_to_idle_us(work, synchronize, clock))
        return [host, calibrate("device events", spin, event_us)]
    finally:
        spin.close()


def as_dict(found: Calibration) -> dict[str, Any]:
    return {
        "slope": found.slope,
        "offset_us": found.offset_us,
        "launch_us": found.launch_us,
        "spin_us": found.spin_us,
        "truth": found.truth,
        "tries": found.tries,
    }
