"""Host work behind every replay: nothing waits, nothing is copied, and the step takes several times as long."""

import time
from typing import Any

from atom_impl.graphs.recording import Recording
from harness.mutants import Mutant, wrap


def stretched(replay: Any, self: Any, factor: float, *given: Any) -> Any:
    begun = time.perf_counter()
    result = replay(self, *given)
    end = begun + factor * (time.perf_counter() - begun)
    while time.perf_counter() < end:
        pass
    return result


MUTANT = Mutant(
    kind="STEPCOST",
    variant="host work behind the replay",
    changes="the host computes for nobody after each replay, seven times as long as the replay took",
    control_is="for a hundredth of what the replay took.",
    caught_by=("latency.graph",),
    says="How many times arm C's step arm R's takes, how many microseconds more, and the line that takes them.",
    plant=lambda: wrap(Recording, "replay", lambda replay, self, *given: stretched(replay, self, 8.0, *given)),
    control=lambda: wrap(Recording, "replay", lambda replay, self, *given: stretched(replay, self, 1.01, *given)),
    cpu_only="there a replay is launched and not waited for, so its host time is next to nothing",
)
