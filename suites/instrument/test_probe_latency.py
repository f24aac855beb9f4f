"""A timer that stops before the device does measures the launch; a sample that was dropped was the one that counted."""

from __future__ import annotations

import pytest

from harness.engines.base import Arm, PadFill, StepBatch, StepResult
from harness.probes.base import ProbeResult
from harness.probes.latency import LatencyProbe, abba, arms_of
from harness.records import Status
from suites.instrument.probe_bench import context_of, gate, measured
from suites.instrument.toy_session import ToySession

LAUNCH_NS, DEVICE_NS = 10_000, 500_000
ARMS = (Arm.E, Arm.C, Arm.R)


class LateDevice(ToySession):
    """A step returns after 10 us; the device needs 500 us more, which only a synchronisation waits for."""

    now_ns = 0
    busy_until_ns = 0

    def step(self, batch: StepBatch, arm: Arm, *, rows: int | None = None, pad: PadFill = PadFill.ENGINE) -> StepResult:
        result = super().step(batch, arm, rows=rows, pad=pad)
        self.now_ns += LAUNCH_NS
        self.busy_until_ns = self.now_ns + DEVICE_NS * (2 if arm is Arm.E else 1)
        return result

    def synchronize(self) -> None:
        self.now_ns = max(self.now_ns, self.busy_until_ns)


def timed(*, scale: int = 1, samples: int = 5) -> ProbeResult:
    context = context_of(LateDevice, samples=samples)
    session = context.session
    assert isinstance(session, LateDevice)
    return LatencyProbe(clock=lambda: session.now_ns * scale).run(context)


def test_a_sample_ends_when_the_device_is_done() -> None:
    result = timed()
    medians = {(entry.arm, entry.bucket): entry.median_us for entry in result.latency}
    assert medians["R", 4] == pytest.approx((LAUNCH_NS + DEVICE_NS) / 1e3)
    assert medians["E", 4] == pytest.approx((LAUNCH_NS + 2 * DEVICE_NS) / 1e3)


def test_every_arm_and_bucket_keeps_all_the_samples_asked_for() -> None:
    result = timed()
    assert {(entry.arm, entry.bucket) for entry in result.latency} == {(a.value, b) for a in ARMS for b in (1, 2, 4)}
    assert all(len(entry.samples_us) == 5 and entry.batch == entry.bucket for entry in result.latency)


@pytest.mark.parametrize(
    ("level", "mode", "workload", "arms"),
    [
        (3, "TR_HYBRID", "decode", "ECR"),
        (3, "NONE", "decode", "ER"),
        (3, "FULL_DECODE_ONLY", "prefill", "ER"),
        (0, "FULL", "decode", "ER"),
    ],
)
def test_an_arm_that_would_run_another_ones_code_is_not_timed_twice(
    level: int, mode: str, workload: str, arms: str
) -> None:
    context = context_of(level=level, mode=mode, workload=workload)
    assert "".join(arm.value for arm in arms_of(context)) == arms


def test_a_step_too_long_for_the_budget_gets_fewer_samples_and_says_so() -> None:
    result = timed(scale=2_000, samples=400)
    assert all(len(entry.samples_us) == 5 for entry in result.latency)
    assert "5 samples of the 400 asked for" in gate(result, "latency.decode.4").message


def test_a_clock_that_stands_still_is_a_failure_and_not_a_record() -> None:
    result = timed(scale=0)
    assert {g.status for g in result.gates if "conditions" not in g.gate} == {Status.FAIL}


def test_blocks_mirror_each_other_so_that_drift_cancels() -> None:
    blocks = abba(ARMS, 4, seed=1)
    assert blocks[1] == blocks[0][::-1]
    assert blocks[:2] == blocks[2:]
    assert {tuple(abba(ARMS, 1, seed)[0]) for seed in range(20)} != {tuple(ARMS)}


def test_the_float32_lane_times_nothing() -> None:
    assert measured(lane="float32", input_sets=1).latency == []
    assert measured(input_sets=1).latency != []
