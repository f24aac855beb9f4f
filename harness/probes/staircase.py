"""Step time against batch size across the buckets: stairs are what recording costs, cliffs are what went wrong.

A batch of five, one past a bucket, ran eagerly at a third of the speed, and a table of full buckets showed nothing: it
holds no batch that is not a bucket. Here every bucket is entered at its edges, n-1, n and n+1, and past the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import torch

from harness.engines.base import Arm, Phase, StepBatch
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import buckets_of, expected_route, mode_of, phase_of
from harness.probes.gates import judged, not_applicable, report
from harness.probes.latency import LatencyProbe
from harness.probes.numerics import open_stream
from harness.probes.numerics.effort import Effort
from harness.records import GateResult, Status
from harness.records import Phase as WorkerPhase
from harness.stats import quartiles
from harness.timing.calibration import idle_to_idle_us

#: A batch may take this much longer than what bounds it, beyond both spreads.
MARGIN = 1.25
#: Seconds that one round of looks may take; the samples are cut to fit, never below three.
BUDGET_S = 3.0
FEWEST_SAMPLES = 3


@dataclass(frozen=True)
class Stair:
    """One batch size. `bucket` is None where it runs eagerly, by the policy that the profile states."""

    batch: int
    bucket: int | None
    median_us: float
    p25_us: float
    p75_us: float
    samples: int

    @property
    def pad_share(self) -> float:
        return 1 - self.batch / self.bucket if self.bucket else 0.0


class StaircaseProbe:
    """Decode alone: a prefill's rows vary by the token, and its buckets' edges are G2's to compare."""

    name = "staircase"

    def __init__(self, latency: LatencyProbe) -> None:
        self.latency = latency

    def run(self, context: ProbeContext) -> ProbeResult:
        context.enter(WorkerPhase.TIMING)
        reason = self._left_out(context)
        if reason:
            return ProbeResult(gates=[not_applicable("latency.staircase", reason)])
        batches = edge_batches(context)
        with torch.inference_mode():
            stairs = self._climb(context, batches)
            gates = judge(stairs, context)
            if any(gate.status is Status.FAIL for gate in gates):  # a slow moment is no cliff: look once more
                stairs = self._climb(context, batches)
                gates = judge(stairs, context)
        rows = [{**asdict(stair), "pad_share": round(stair.pad_share, 4)} for stair in stairs]
        return ProbeResult(gates=gates, counters={"staircase": rows})

    def _left_out(self, context: ProbeContext) -> str:
        calibration = self.latency.calibration
        if calibration is not None and not calibration.ok:
            return f"refused: {calibration.name} failed its calibration"
        if phase_of(context) is not Phase.DECODE:
            return "a staircase is climbed in decode cells"
        if mode_of(context) == "NONE":
            return "the mode records no graph, so there are no buckets"
        return "" if context.profile.timing.staircase_samples else "timing.staircase_samples = 0"

    def _climb(self, context: ProbeContext, batches: Sequence[StepBatch]) -> list[Stair]:
        """Every size once a round, up and down in turn, so that drift meets all sizes alike."""
        for batch in batches:
            self._sample(context, batch)
        once_s = sum(self._sample(context, batch) for batch in batches) / 1e6
        wanted = context.profile.timing.staircase_samples
        count = min(wanted, max(FEWEST_SAMPLES, int(BUDGET_S / once_s) if once_s > 0 else wanted))
        taken: dict[int, list[float]] = {batch.rows: [] for batch in batches}
        for number in range(count):
            for batch in batches if number % 2 == 0 else batches[::-1]:
                taken[batch.rows].append(self._sample(context, batch))
        return [_stair(rows, expected_route(context, rows).bucket, samples) for rows, samples in taken.items()]

    def _sample(self, context: ProbeContext, batch: StepBatch) -> float:
        session, calibration = context.session, self.latency.calibration
        read = idle_to_idle_us(lambda: session.step(batch, Arm.R), session.synchronize, self.latency.clock)
        return read - (calibration.offset_us if calibration else 0.0)


def _stair(rows: int, bucket: int | None, samples: list[float]) -> Stair:
    box = quartiles(samples, f"step of {rows} rows")
    return Stair(rows, bucket, box.median, box.p25, box.p75, len(samples))


def edge_batches(context: ProbeContext) -> list[StepBatch]:
    """A batch of each size n-1, n and n+1 around every bucket, as far as the limits allow, ascending."""
    stream, _ = open_stream(context, Effort.of(context), recorded=True)
    everyone = next(iter(stream.rounds())).references[0]
    buckets = buckets_of(context)
    sizes = {size for bucket in buckets for size in (bucket - 1, bucket, bucket + 1)}
    return [_first(everyone, size) for size in sorted(sizes) if 1 <= size <= everyone.rows]


def _first(batch: StepBatch, count: int) -> StepBatch:
    return StepBatch(batch.phase, batch.token_ids[:count], batch.context_lens[:count], batch.block_tables[:count])


def judge(stairs: Sequence[Stair], context: ProbeContext) -> list[GateResult]:
    return [_flat(stairs), _cliffs(stairs), _padding(context), _past_the_ladder(stairs)]


def _flat(stairs: Sequence[Stair]) -> GateResult:
    """Within a bucket every batch replays the same recording, so none may take longer than the full one."""
    full = {stair.bucket: stair for stair in stairs if stair.batch == stair.bucket}
    inside = [(stair, full[stair.bucket]) for stair in stairs if stair.bucket in full and stair.bucket != stair.batch]
    ratios = [(stair.p25_us / top.p75_us, stair, top) for stair, top in inside]
    if not ratios:
        return not_applicable("latency.staircase.flat", "no bucket is entered by a smaller batch")
    worst, stair, top = max(ratios, key=lambda entry: entry[0])
    text = (
        f"{stair.batch} rows in bucket {stair.bucket} take {stair.median_us / 1e3:.3f} ms and the full bucket "
        f"{top.median_us / 1e3:.3f} ms; beyond both spreads at most {MARGIN:g} times as long"
    )
    where = f"arm R, {stair.batch} rows, bucket {stair.bucket}"
    return judged("latency.staircase.flat", worst <= MARGIN, text, measured=worst, threshold=MARGIN, where=where)


def _cliffs(stairs: Sequence[Stair]) -> GateResult:
    """From one bucket to the next, time may grow as the rows that are computed do, and no faster."""
    full = sorted((s for s in stairs if s.batch == s.bucket), key=lambda stair: stair.batch)
    steps = [
        (low, min((s for s in stairs if s.bucket == high.bucket), key=lambda s: s.batch))
        for low, high in pairwise(full)
    ]
    if not steps:
        return not_applicable("latency.staircase.cliffs", "there is one bucket")
    rises = [
        (above.p25_us / low.p75_us * low.batch / (above.bucket or above.batch), low, above) for low, above in steps
    ]
    worst, low, above = max(rises, key=lambda entry: entry[0])
    text = (
        f"steepest from {low.batch} rows ({low.median_us / 1e3:.3f} ms) to {above.batch} rows in bucket {above.bucket} "
        f"({above.median_us / 1e3:.3f} ms): {worst:.2f} times the growth of the rows computed"
    )
    where = f"arm R, between {low.batch} and {above.batch} rows"
    return judged("latency.staircase.cliffs", worst <= MARGIN, text, measured=worst, threshold=MARGIN, where=where)


def _padding(context: ProbeContext) -> GateResult:
    """By arithmetic: the share of pad rows at the smallest batch of each bucket, and over all sizes of the ladder."""
    buckets = buckets_of(context)
    below = [0, *buckets[:-1]]
    shares = {bucket: 1 - (low + 1) / bucket for low, bucket in zip(below, buckets, strict=True)}
    rows = [(size, bucket) for low, bucket in zip(below, buckets, strict=True) for size in range(low + 1, bucket + 1)]
    mean = 1 - sum(size / bucket for size, bucket in rows) / len(rows)
    worst = max(shares, key=lambda bucket: shares[bucket])
    limit = context.profile.budget.pad_share
    text = (
        f"bucket {worst} is entered with {100 * shares[worst]:.0f} % pad rows; over all sizes up to {buckets[-1]} "
        f"{100 * mean:.1f} % of the computed rows are padding"
    )
    return judged("closed.padding", shares[worst] <= limit, text, measured=shares[worst], threshold=limit)


def _past_the_ladder(stairs: Sequence[Stair]) -> GateResult:
    """What the stated policy costs; the policy itself is the profile's, so it gates nothing."""
    eager = [stair for stair in stairs if stair.bucket is None]
    last = max((s for s in stairs if s.bucket is not None), key=lambda stair: stair.batch, default=None)
    if not eager or last is None:
        return not_applicable("latency.staircase.past", "no size past the ladder is allowed")
    first = eager[0]
    ratio = first.median_us / last.median_us
    text = f"{first.batch} rows run eagerly and take {ratio:.2f} times as long as {last.batch}"
    return report("latency.staircase.past", text, measured=ratio)
