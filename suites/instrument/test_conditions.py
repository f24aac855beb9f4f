"""Ten seconds under a power cap, a neighbour's compile, a second process on the GPU: each made one arm of a comparison
slower, and nothing in the record said so. The machine is read around every block, and a spoilt block is taken again.
"""

from __future__ import annotations

import os
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.host import UNKNOWN
from harness.timing.conditions import MOST_AGAIN, Conditions, Reading, Watch, timed_blocks, violations, watch_for
from harness.timing.gpu_sensors import FACTS, GpuSensors, open_sensors

QUIET = {"clock_mhz": 1980, "power_w": 400.0, "throttling": "none", "users": 1, "violations": 7}


def reading(at_s: float, busy: float = 0.0, own: float = 0.0, mhz: float | None = 3000.0, **gpu: Any) -> Reading:
    return Reading(at_s, busy, own, mhz, {**QUIET, **gpu} if gpu else {})


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (reading(1.0, busy=1.9, own=0.1), "other processes took the CPU"),
        (reading(1.0, mhz=2000.0), "the CPU's clock fell"),
        (reading(1.0, throttling="power_cap"), "held down (power_cap)"),
        (reading(1.0, violations=8), "counted time under a limit"),
        (reading(1.0, users=2), "another process came to the GPU"),
    ],
)
def test_each_disturbance_is_named(after: Reading, why: str) -> None:
    before = reading(0.0, users=1) if after.gpu else reading(0.0)
    (found,) = violations(before, after, cores=2)
    assert why in found


@pytest.mark.parametrize(
    "after",
    [
        reading(1.0, busy=1.9, own=1.5),  # the work is its own
        reading(0.01, busy=0.02),  # too short for the kernel's ticks
        reading(1.0, mhz=2700.0),
        reading(1.0, throttling="none"),
        reading(1.0, throttling=UNKNOWN, violations=UNKNOWN, users=1),
    ],
)
def test_a_quiet_block_is_not_taken_again(after: Reading) -> None:
    before = reading(0.0, users=1) if after.gpu else reading(0.0)
    assert violations(before, after, cores=2) == []


def test_a_neighbour_on_a_machine_with_room_is_no_disturbance() -> None:
    assert violations(reading(0.0), reading(1.0, busy=4.0), cores=64) == []


class Scripted(Watch):
    def __init__(self, limits: list[str]) -> None:
        self.cores, self._limits = 2, iter(limits)

    def read(self) -> Reading:
        return reading(0.0, throttling=next(self._limits, "none"))


def test_a_spoilt_block_is_taken_again_and_said() -> None:
    calls: list[str] = []

    def take(block: str) -> int:
        calls.append(block)
        return len(calls)

    taken, seen = timed_blocks(["a", "b"], take, Scripted(["hw_thermal"]))
    assert calls == ["a", "a", "b"]
    assert taken == [2, 3]
    assert "1 timed again: the GPU's clocks were held down (hw_thermal)" in str(seen)
    assert not seen.kept


def test_a_machine_that_stays_disturbed_ends_the_repeats_and_is_said_too() -> None:
    taken, seen = timed_blocks(range(3), lambda block: block, Scripted(["power_cap"] * 100))
    assert taken == [0, 1, 2]
    assert seen.again.total() == MOST_AGAIN
    assert seen.kept.total() == 3
    assert "3 kept although" in str(seen)


def test_what_nobody_can_say_reads_unknown() -> None:
    nobody = open_sensors("0000:1b:00.0", load=lambda module: None)
    assert nobody.read() == dict.fromkeys(FACTS, UNKNOWN)
    seen = Conditions(readings=[Reading(0.0, 0.0, 0.0, None, nobody.read())])
    assert "GPU clock unknown" in str(seen)
    assert "limits unknown" in str(seen)


def test_nvml_is_asked_about_the_gpu_at_the_address_and_a_missing_call_costs_only_itself() -> None:
    nvml: Any = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_PERF_POLICY_POWER=0,
        NVML_PERF_POLICY_THERMAL=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=[b"00000000:1B:00.0", b"00000000:9D:00.0"][handle]),
        nvmlDeviceGetClockInfo=lambda handle, kind: 1000 + handle,
        nvmlDeviceGetPowerUsage=lambda handle: 412_000,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0b100,
        nvmlDeviceGetViolationStatus=lambda handle, policy: SimpleNamespace(violationTime=5),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=pid) for pid in (1, os.getpid())],
    )
    read = open_sensors("0000:9d:00.0", load={"pynvml": nvml}.get).read()
    assert read == {
        "clock_mhz": 1001,
        "power_w": 412.0,
        "temperature_c": UNKNOWN,
        "throttling": "power_cap",
        "users": 2,
        "others": 1,
        "violations": 10,
    }


def test_amdsmi_is_asked_in_its_own_words() -> None:
    smi: Any = ModuleType("amdsmi")
    smi.AmdSmiTemperatureType = SimpleNamespace(HOTSPOT=1)
    smi.AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    smi.AmdSmiClkType = SimpleNamespace(GFX=0)
    smi.amdsmi_init = lambda: None
    smi.amdsmi_get_processor_handles = lambda: ["x"]
    smi.amdsmi_get_gpu_device_bdf = lambda handle: "0000:9d:00.0"
    smi.amdsmi_get_clock_info = lambda handle, kind: {"clk": 2100}
    smi.amdsmi_get_power_info = lambda handle: {"current_socket_power": "N/A", "average_socket_power": 500}
    smi.amdsmi_get_temp_metric = lambda handle, kind, metric: 61
    smi.amdsmi_get_violation_status = lambda handle: {"active_ppt_pwr": True, "acc_ppt_pwr": 3, "acc_counter": 99}
    read = open_sensors("0000:9d:00.0", load={"amdsmi": smi}.get).read()
    assert read["throttling"] == "ppt_pwr"
    assert (read["clock_mhz"], read["power_w"], read["violations"]) == (2100, 500, 3)
    assert read["users"] == UNKNOWN


def test_this_machine_is_read_in_less_than_a_step_takes() -> None:
    watch = watch_for("cpu")
    first, second = watch.read(), watch.read()
    assert second.at_s - first.at_s < 0.05
    assert second.busy_cpu_s >= first.busy_cpu_s > 0
    assert isinstance(GpuSensors({}).read(), dict)
