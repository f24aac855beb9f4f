"""How much evidence a lane takes, from the profile.

Kept with the results: "all replays agree" was once said of two replays.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from harness.engines.base import Phase
from harness.probes.base import ProbeContext
from harness.probes.buckets import mode_of, phase_of


@dataclass(frozen=True)
class Effort:
    rounds: int  # input sets for each bucket
    replays: int  # of each set, at least
    reference_every: int  # float64 in every this many rounds
    vary_rounds: int  # rounds in which what lies in pad rows is varied
    soak_steps: int

    @classmethod
    def of(cls, context: ProbeContext) -> Effort:
        """The float32 lane is there for G3: it takes half the sets and replays each once. Without graphs there is
        nothing to replay, and each set runs once too; but G3 wants all of them there: over half the rows, the p99 of
        eager's error was too small a measure, and clean bfloat16 code failed by it.
        """
        numerics = context.profile.numerics
        if numerics.input_sets < 1 or numerics.replays < 1:
            raise ValueError(
                f"numerics.input_sets = {numerics.input_sets}, replays = {numerics.replays}: both must be at least 1; "
                "eight sets and two replays are the usual evidence"
            )
        prefill, serving = phase_of(context) is Phase.PREFILL, context.lane == "serving"
        rounds = numerics.input_sets
        if not serving:
            rounds = max(2, -(-rounds // 2))  # the second set is the first that leaves pad rows
        return cls(
            rounds=rounds,
            replays=numerics.replays if serving and mode_of(context) != "NONE" else 1,
            reference_every=2 if prefill and rounds >= 4 else 1,
            vary_rounds=2 if serving and not prefill else 1,
            soak_steps=numerics.soak_steps if serving else 0,
        )

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
