"""Step latency with its spread: the replay, and beside it the same step compiled without a graph and eager.

A time taken without waiting for the device measured the launch, and was off by a factor of ten. Every sample here
lies between two synchronisations, arms alternate so that a slow minute hits all of them, and no sample is dropped.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from harness.engines.base import Arm, EngineSession, StepBatch
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import phase_of
from harness.probes.gates import judged, not_applicable, report
from harness.probes.numerics import open_stream
from harness.probes.numerics.effort import Effort
from harness.records import Latency, Phase
from harness.stats import quartiles
from harness.timing.calibration import Calibration, idle_to_idle_us
from harness.timing.conditions import Conditions, Watch, timed_blocks, watch_for

ARMS = (Arm.E, Arm.C, Arm.R)
#: Seconds that one bucket may take. A long prefill gets fewer samples than the profile asks for, and the gate says so.
BUCKET_BUDGET_S = 6.0
FEWEST_SAMPLES = 5


@dataclass(frozen=True)
class Timed:
    arm: Arm
    bucket: int
    samples_us: list[float]


class LatencyProbe:
    """`clock` returns nanoseconds; tests bring their own. `calibration` is what was found of it: what it reads of
    nothing is subtracted from every sample, and a clock that failed times nothing.
    """

    name = "latency"

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self.calibration: Calibration | None = None
        self.watch: Watch | None = None

    def run(self, context: ProbeContext) -> ProbeResult:
        context.enter(Phase.TIMING)
        if self.calibration is not None and not self.calibration.ok:
            reason = f"refused: {self.calibration.name} failed its calibration"
            return ProbeResult(gates=[not_applicable("latency", reason)])
        self.watch = self.watch or watch_for(context.device)
        result = ProbeResult()
        with torch.inference_mode():
            for bucket, batch in full_batches(context):
                timed, seen = self._bucket(context, bucket, batch)
                result.merge(_summary(context, bucket, batch, timed))
                result.gates.append(report(f"latency.conditions.{bucket}", f"while bucket {bucket} was timed: {seen}"))
                result.counters.setdefault("conditions", {})[str(bucket)] = seen.as_dict()
        return result

    def _bucket(self, context: ProbeContext, bucket: int, batch: StepBatch) -> tuple[list[Timed], Conditions]:
        session, timing = context.session, context.profile.timing
        estimates = [
            self._sample(session, batch, arm, bucket) for _ in range(max(1, timing.warmup_steps)) for arm in ARMS
        ]
        # The last warm step of each arm is the estimate; the first ones pay for caches.
        round_s = sum(estimates[-len(ARMS) :]) / 1e6
        affordable = int(BUCKET_BUDGET_S / round_s) if round_s > 0 else timing.samples
        count = min(timing.samples, max(FEWEST_SAMPLES, affordable))
        orders = abba(ARMS, count, context.profile.numerics.seed + bucket)
        blocks = [[arm for order in orders[i : i + 2] for arm in order] for i in range(0, count, 2)]
        assert self.watch is not None
        taken, seen = timed_blocks(
            blocks, lambda block: [(arm, self._sample(session, batch, arm, bucket)) for arm in block], self.watch
        )
        samples: dict[Arm, list[float]] = {arm: [] for arm in ARMS}
        for arm, us in (sample for block in taken for sample in block):
            samples[arm].append(us)
        return [Timed(arm, bucket, samples[arm]) for arm in ARMS], seen

    def _sample(self, session: EngineSession, batch: StepBatch, arm: Arm, bucket: int) -> float:
        """Microseconds of one step from idle to idle, less what the timer reads of nothing."""
        rows = None if arm is Arm.R else bucket
        read = idle_to_idle_us(lambda: session.step(batch, arm, rows=rows), session.synchronize, self.clock)
        return read - (self.calibration.offset_us if self.calibration else 0.0)


def abba(arms: Sequence[Arm], blocks: int, seed: int) -> list[list[Arm]]:
    """`blocks` orders of all arms, each odd one the mirror of the one before it, starting from a seeded shuffle."""
    order = list(arms)
    random.Random(seed).shuffle(order)
    return [order if block % 2 == 0 else order[::-1] for block in range(blocks)]


def full_batches(context: ProbeContext) -> list[tuple[int, StepBatch]]:
    """One batch that fills each bucket. No context is built: what the cache holds does not change what a step costs."""
    stream, _ = open_stream(context, Effort.of(context), recorded=True)
    first = next(iter(stream.rounds()))
    return [(s.bucket, s.full) for s in first.sets]


def _summary(context: ProbeContext, bucket: int, batch: StepBatch, timed: list[Timed]) -> ProbeResult:
    result = ProbeResult()
    phase, asked = phase_of(context).value, context.profile.timing.samples
    parts = []
    for entry in timed:
        box = quartiles(entry.samples_us, f"latency of arm {entry.arm.value}")
        parts.append(f"{entry.arm.value} {box.median / 1e3:.2f} ms [{box.p25 / 1e3:.2f}-{box.p75 / 1e3:.2f}]")
        result.latency.append(
            Latency(
                arm=entry.arm.value,
                phase=phase,
                batch=len(batch.token_ids),
                bucket=bucket,
                median_us=box.median,
                p25_us=box.p25,
                p75_us=box.p75,
                samples_us=entry.samples_us,
            )
        )
    taken = min(len(entry.samples_us) for entry in timed)
    ok = taken > 0 and all(sample > 0 for entry in timed for sample in entry.samples_us)
    few = f" ({taken} samples of the {asked} asked for, within {BUCKET_BUDGET_S:g} s)" if taken < asked else ""
    result.gates.append(judged(f"latency.{phase}.{bucket}", ok, f"{phase} at bucket {bucket}: {', '.join(parts)}{few}"))
    return result
