"""Host work in front of every replay: nothing waits, nothing is copied, and the step takes four times as long."""

import time
from typing import Any

from atom_impl.graphs.recording import Recording
from harness.mutants import Mutant, wrap


def after_work(replay: Any, self: Any, seconds: float, *given: Any) -> Any:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return replay(self, *given)


MUTANT = Mutant(
    kind="STEPCOST",
    variant="host work before the replay",
    changes="the host computes for 8 ms in each replayed step",
    control_is="for 20 us.",
    caught_by=("latency.graph",),
    says="How many times arm C's step arm R's takes, how many microseconds more, and the line that takes them.",
    plant=lambda: wrap(Recording, "replay", lambda replay, self, *given: after_work(replay, self, 0.008, *given)),
    control=lambda: wrap(Recording, "replay", lambda replay, self, *given: after_work(replay, self, 0.00002, *given)),
    gpu=True,
)
