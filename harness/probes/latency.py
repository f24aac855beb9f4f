"""Step latency with its spread: the replay, and beside it the same step compiled without a graph and eager.

A time taken without waiting for the device measured the launch, and was off by a factor of ten. Every sample here
lies between two synchronisations, arms alternate so that a slow minute hits all of them, and no sample is dropped.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from harness.engines.base import Arm, EngineSession, StepBatch
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import mode_of, phase_of
from harness.probes.gates import judged, not_applicable, report
from harness.probes.hot_line import hotter_line
from harness.probes.numerics import open_stream
from harness.probes.numerics.effort import Effort
from harness.probes.step_cost import Case, Pair, Sample, gates, not_comparable, paired, waits_so_far
from harness.records import GateResult, Latency, Phase, Status
from harness.stats import quartiles
from harness.timing.calibration import Calibration, idle_to_idle_us
from harness.timing.conditions import Conditions, Watch, timed_blocks, watch_for

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
        cases: list[Case] = []
        with torch.inference_mode():
            for bucket, batch in full_batches(context):
                timed, seen = self._bucket(context, bucket, batch)
                result.merge(_summary(context, bucket, batch, timed))
                result.gates.append(report(f"latency.conditions.{bucket}", f"while bucket {bucket} was timed: {seen}"))
                result.counters.setdefault("conditions", {})[str(bucket)] = seen.as_dict()
                cases += self._cases(context, bucket, batch, timed)
            result.gates += self._step_cost(context, cases, result)
        return result

    @staticmethod
    def _step_cost(context: ProbeContext, cases: Sequence[Case], result: ProbeResult) -> list[GateResult]:
        """Times that are no times say nothing of each other."""
        if plain_arm(context) is None:
            return not_comparable("arms C and R run the same code here, and C is not timed twice")
        sound = all(case.pairs for case in cases) and not any(g.status is Status.FAIL for g in result.gates)
        return gates(cases, context.device) if sound else []

    def _cases(self, context: ProbeContext, bucket: int, batch: StepBatch, timed: Sequence[Timed]) -> Iterator[Case]:
        plain = plain_arm(context)
        if plain is None:
            return

        def step(arm: Arm) -> Sample:
            return self._sample(context.session, batch, arm, bucket)

        def again(count: int) -> list[Pair]:
            """Fresh pairs in mirrored order, fewer of a step so long that they would take minutes."""
            spent_s = sum(pair.plain.us + pair.served.us for pair in pairs) / len(pairs) / 1e6
            taken = min(count, max(FEWEST_PAIRS, int(2 * BUCKET_BUDGET_S / spent_s)))
            orders = abba((plain, Arm.R), taken, bucket)
            timed_again = [{arm.value: step(arm) for arm in order} for order in orders]
            return [Pair(one[plain.value], one[Arm.R.value]) for one in timed_again]

        pairs = paired({entry.arm.value: entry.samples for entry in timed}, plain.value, Arm.R.value)
        hot_line = lambda: hotter_line(lambda: step(Arm.R), lambda: step(plain))  # noqa: E731
        yield Case(bucket, pairs, again, hot_line, plain.value)

    def _bucket(self, context: ProbeContext, bucket: int, batch: StepBatch) -> tuple[list[Timed], Conditions]:
        session, timing, arms = context.session, context.profile.timing, arms_of(context)
        estimates = [
            self._sample(session, batch, arm, bucket) for _ in range(max(1, timing.warmup_steps)) for arm in arms
        ]
        # The last warm step of each arm is the estimate; the first ones pay for caches.
        round_s = sum(sample.us for sample in estimates[-len(arms) :]) / 1e6
        affordable = int(BUCKET_BUDGET_S / round_s) if round_s > 0 else timing.samples
        count = min(timing.samples, max(FEWEST_SAMPLES, affordable))
        orders = abba(arms, count, context.profile.numerics.seed + bucket)
        blocks = [[arm for order in orders[i : i + 2] for arm in order] for i in range(0, count, 2)]
        assert self.watch is not None
        taken, seen = timed_blocks(
            blocks, lambda block: [(arm, self._sample(session, batch, arm, bucket)) for arm in block], self.watch
        )
        samples: dict[Arm, list[Sample]] = {arm: [] for arm in arms}
        for arm, sample in (sample for block in taken for sample in block):
            samples[arm].append(sample)
        return [Timed(arm, bucket, samples[arm]) for arm in arms], seen

    def _sample(self, session: EngineSession, batch: StepBatch, arm: Arm, bucket: int) -> Sample:
        """One step from idle to idle, less what the timer reads of nothing. Waiting for the device at its end is not
        waiting on the step's way.
        """
        waits = 0

        def work() -> None:
            nonlocal waits
            before = waits_so_far()
            session.step(batch, arm, rows=None if arm is Arm.R else bucket)
            waits = waits_so_far() - before

        read = idle_to_idle_us(work, session.synchronize, self.clock)
        return Sample(read - (self.calibration.offset_us if self.calibration else 0.0), waits)


def arms_of(context: ProbeContext) -> tuple[Arm, ...]:
    """E, C, R, without C where it runs another arm's code: E's at level 0, and R's in a phase without graphs."""
    own_code = context.cell["level"] > 0 and mode_of(context) != "NONE"
    return (Arm.E, Arm.C, Arm.R) if own_code else (Arm.E, Arm.R)


def plain_arm(context: ProbeContext) -> Arm | None:
    """The arm that runs arm R's code without a graph; None where nothing but R does."""
    if context.cell["level"] == 0:
        return Arm.E
    return Arm.C if Arm.C in arms_of(context) else None


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
