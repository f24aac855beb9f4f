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
from harness.probes.gates import judged
from harness.probes.hot_line import hotter_line
from harness.probes.numerics import open_stream
from harness.probes.numerics.effort import Effort
from harness.probes.step_cost import Case, Pair, Sample, gates, paired, waits_so_far
from harness.records import Latency, Phase, Status
from harness.stats import quartiles

ARMS = (Arm.E, Arm.C, Arm.R)
#: Seconds that one bucket may take. A long prefill gets fewer samples than the profile asks for, and the gate says so.
BUCKET_BUDGET_S = 6.0
FEWEST_SAMPLES = 5
#: A sign test over fewer can confirm nothing at `step_cost.ALPHA`.
FEWEST_PAIRS = 16


@dataclass(frozen=True)
class Timed:
    arm: Arm
    bucket: int
    samples: list[Sample]

    @property
    def samples_us(self) -> list[float]:
        return [sample.us for sample in self.samples]


class LatencyProbe:
    """`clock` returns nanoseconds; tests bring their own."""

    name = "latency"

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock

    def run(self, context: ProbeContext) -> ProbeResult:
        context.enter(Phase.TIMING)
        result = ProbeResult()
        cases = []
        with torch.inference_mode():
            for bucket, batch in full_batches(context):
                timed = self._bucket(context, bucket, batch)
                result.merge(_summary(context, bucket, batch, timed))
                cases.append(self._case(context.session, bucket, batch, timed))
            if all(case.pairs for case in cases) and all(gate.status is Status.PASS for gate in result.gates):
                result.gates += gates(cases, context.device)  # times that are no times say nothing of each other
        return result

    def _case(self, session: EngineSession, bucket: int, batch: StepBatch, timed: Sequence[Timed]) -> Case:
        def step(arm: Arm) -> Sample:
            return self._sample(session, batch, arm, bucket)

        def again(count: int) -> list[Pair]:
            """Fresh pairs in mirrored order, fewer of a step so long that they would take minutes."""
            spent_s = sum(pair.plain.us + pair.served.us for pair in pairs) / len(pairs) / 1e6
            fewest = max(FEWEST_PAIRS, min(count, int(2 * BUCKET_BUDGET_S / spent_s)))
            orders = abba((Arm.C, Arm.R), fewest, bucket)
            taken = [{arm.value: step(arm) for arm in order} for order in orders]
            return [Pair(one[Arm.C.value], one[Arm.R.value]) for one in taken]

        pairs = paired({entry.arm.value: entry.samples for entry in timed}, Arm.C.value, Arm.R.value)
        return Case(bucket, pairs, again, lambda: hotter_line(lambda: step(Arm.R), lambda: step(Arm.C)))

    def _bucket(self, context: ProbeContext, bucket: int, batch: StepBatch) -> list[Timed]:
        session, timing = context.session, context.profile.timing
        estimates = [
            self._sample(session, batch, arm, bucket) for _ in range(max(1, timing.warmup_steps)) for arm in ARMS
        ]
        # The last warm step of each arm is the estimate; the first ones pay for caches.
        round_s = sum(sample.us for sample in estimates[-len(ARMS) :]) / 1e6
        affordable = int(BUCKET_BUDGET_S / round_s) if round_s > 0 else timing.samples
        count = min(timing.samples, max(FEWEST_SAMPLES, affordable))
        samples: dict[Arm, list[Sample]] = {arm: [] for arm in ARMS}
        for order in abba(ARMS, count, context.profile.numerics.seed + bucket):
            for arm in order:
                samples[arm].append(self._sample(session, batch, arm, bucket))
        return [Timed(arm, bucket, samples[arm]) for arm in ARMS]

    def _sample(self, session: EngineSession, batch: StepBatch, arm: Arm, bucket: int) -> Sample:
        """One step from idle to idle. Waiting for the device at its end is not waiting on the step's way."""
        session.synchronize()
        waits = waits_so_far()
        begun = self.clock()
        session.step(batch, arm, rows=None if arm is Arm.R else bucket)
        waits = waits_so_far() - waits
        session.synchronize()
        return Sample((self.clock() - begun) / 1e3, waits)


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
    unsound = "" if ok else "; a sample that is no positive time: the clock stands still, or nothing was run (HARNESS)"
    few = f" ({taken} samples of the {asked} asked for, within {BUCKET_BUDGET_S:g} s)" if taken < asked else ""
    result.gates.append(
        judged(f"latency.{phase}.{bucket}", ok, f"{phase} at bucket {bucket}: {', '.join(parts)}{few}{unsound}")
    )
    return result
