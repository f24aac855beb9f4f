"""A clock that stands still: every step takes nothing, and nothing is the best latency there is."""

import time
from typing import Any

from harness.mutants import Mutant, wrap
from harness.probes.latency import LatencyProbe


def stopped(init: Any, self: Any, clock: Any = None) -> None:
    init(self, lambda: 0)


def ticking(init: Any, self: Any, clock: Any = None) -> None:
    init(self, time.monotonic_ns)


MUTANT = Mutant(
    kind="HARNESS",
    variant="clock stands still",
    changes="the latency probe's clock always says zero",
    control_is="another clock that ticks.",
    caught_by=("calibration.host_clock",),
    says="What the timer reads of work of known length, and that nothing is timed with it.",
    plant=lambda: wrap(LatencyProbe, "__init__", stopped),
    control=lambda: wrap(LatencyProbe, "__init__", ticking),
)
