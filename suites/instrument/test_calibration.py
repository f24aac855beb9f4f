"""A timer that did not wait read 10 us of a step that took 500, and one on the wrong stream read as little. Each is put
before a device of known latency here, and refused; the honest one is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from harness.probes import measure
from harness.probes.calibration import CalibrationProbe, calibrations
from harness.probes.latency import LatencyProbe
from harness.records import Fate, Status
from harness.timing.calibration import TOLERANCE, Calibration, calibrate, idle_to_idle_us
from harness.timing.fake_device import FakeDevice
from harness.verdicts import lane_fate
from suites.instrument.probe_bench import context_of, gate
from suites.instrument.toy_session import ToySession, one_thread


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    device = FakeDevice(spin_us=300.0)
    yield device
    device.close()


def tried(device: FakeDevice, clock: Callable[[], int], synchronize: Callable[[], None] | None = None) -> Calibration:
    wait = synchronize or device.synchronize
    return calibrate("clock", device, lambda work: idle_to_idle_us(work, wait, clock))


def test_an_honest_timer_reads_k_kernels_as_k_times_one(device: FakeDevice) -> None:
    found = tried(device, time.perf_counter_ns)
    assert found.ok
    assert found.slope == pytest.approx(1, abs=TOLERANCE)
    assert 0 <= found.offset_us < 50
    assert "reads 100" in str(found) or "reads 9" in str(found) or "reads 10" in str(found)


def test_a_timer_that_does_not_wait_for_the_device_is_refused(device: FakeDevice) -> None:
    found = tried(device, time.perf_counter_ns, synchronize=lambda: None)
    assert not found.ok
    assert found.slope < 0.1
    device.synchronize()


@pytest.mark.parametrize(("name", "rate"), [("13 % fast", 1.13), ("7 % slow", 0.93), ("still", 0.0)])
def test_a_clock_that_is_wrong_is_refused(device: FakeDevice, name: str, rate: float) -> None:
    assert not tried(device, lambda: int(time.perf_counter_ns() * rate)).ok


def test_a_slow_synchronisation_is_offset_and_no_slope(device: FakeDevice) -> None:
    def slow() -> None:
        device.synchronize()
        time.sleep(100e-6)

    found = tried(device, time.perf_counter_ns, slow)
    assert found.ok
    assert found.offset_us >= 100


def test_an_offset_as_long_as_a_kernel_is_refused(device: FakeDevice) -> None:
    def very_slow() -> None:
        device.synchronize()
        time.sleep(400e-6)

    assert not tried(device, time.perf_counter_ns, very_slow).ok


def test_a_failed_calibration_times_nothing_and_leaves_the_cell_unfit() -> None:
    context = context_of()
    latency = LatencyProbe(clock=lambda: time.perf_counter_ns() // 2)
    result = CalibrationProbe(latency).run(context)
    assert gate(result, "calibration.host_clock").status is Status.FAIL
    refused = latency.run(context)
    assert refused.latency == []
    assert [found.status for found in refused.gates] == [Status.NOT_APPLICABLE]
    fate, reason = lane_fate([*result.gates, *refused.gates])
    assert fate is Fate.UNFIT
    assert "nothing is timed here" in reason


def test_what_the_timer_reads_of_nothing_is_subtracted_from_every_sample() -> None:
    context = context_of(input_sets=2)
    plain, corrected = LatencyProbe(), LatencyProbe()
    (found,) = calibrations("cpu", lambda: None, time.perf_counter_ns)
    corrected.calibration = Calibration(
        found.name, found.slope, 1e6, found.launch_us, 1e9, found.truth, 1, found.readings_us
    )
    with one_thread():
        before = {(x.arm, x.bucket): x.median_us for x in plain.run(context).latency}
        after = {(x.arm, x.bucket): x.median_us for x in corrected.run(context).latency}
    assert all(after[key] == pytest.approx(before[key] - 1e6, abs=5e4) for key in before)


def test_every_serving_cell_is_calibrated_before_it_is_timed() -> None:
    with one_thread():
        result = measure(context_of(ToySession, input_sets=2))
    names = [found.gate for found in result.gates]
    assert names.index("calibration.host_clock") < names.index("latency.decode.1")
    assert result.counters["calibration"]["host clock"]["slope"] == pytest.approx(1, abs=TOLERANCE)
