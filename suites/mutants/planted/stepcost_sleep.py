"""Two milliseconds of nothing before every replay."""

import time
from typing import Any

from atom_impl.graphs.recording import Recording
from harness.mutants import Mutant, wrap


def asleep(replay: Any, self: Any, args: Any = (), kwargs: Any = None) -> Any:
    time.sleep(0.002)
    return replay(self, args, kwargs)


def awake(replay: Any, self: Any, args: Any = (), kwargs: Any = None) -> Any:
    return replay(self, args, kwargs)


MUTANT = Mutant(
    kind="STEPCOST",
    variant="sleep before the replay",
    changes="the host sleeps 2 ms in each replayed step",
    control_is="a replay through one more call.",
    caught_by=("latency.waits", "latency.graph"),
    says="That arm R waits once in each step and arm C never, how much longer it takes, and the line that it waits in.",
    plant=lambda: wrap(Recording, "replay", asleep),
    control=lambda: wrap(Recording, "replay", awake),
    gpu=True,
)
