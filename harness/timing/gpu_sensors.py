"""One GPU's sensors by whichever library is there: amdsmi, NVML, or neither, and then every fact is "unknown".

A driver that lacks one call must not cost the others, and a reading must take microseconds: it stands around every
timed block. The GPU is found by its PCI address, since telemetry counts all of a node's and torch those it was shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

from harness.gpus import event_reasons, known_facts, load_optional, violations_now
from harness.host import UNKNOWN, pci_address

FACTS = ("clock_mhz", "power_w", "temperature_c", "throttling", "users", "others", "violations")


class GpuSensors:
    """`asked` are the calls that answer here; what none of them knows reads "unknown"."""

    def __init__(self, asked: dict[str, Callable[[], Any]]) -> None:
        self._asked = asked

    def read(self) -> dict[str, Any]:
        return {**dict.fromkeys(FACTS, UNKNOWN), **known_facts(**self._asked)}


def open_sensors(address: str | None = None, load: Callable[[str], ModuleType | None] = load_optional) -> GpuSensors:
    """Sensors of the GPU at a PCI address; of the one that torch uses in this process by default."""
    address = _torch_address() if address is None else address
    for opened in (_amd(load("amdsmi"), address), _nvidia(load("pynvml"), address)):
        if opened is not None:
            return GpuSensors(opened)
    return GpuSensors({})


def _torch_address() -> str:
    import torch

    from harness.host import pci_of

    return pci_of(torch.cuda.get_device_properties(torch.cuda.current_device()))


def _amd(smi: Any, address: str) -> dict[str, Callable[[], Any]] | None:
    if smi is None:
        return None
    try:
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
        handle = next(h for h in handles if _same(smi.amdsmi_get_gpu_device_bdf(h), address) or len(handles) == 1)
    except Exception:
        return None
    hot, now = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
    return {
        "clock_mhz": lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)["clk"],
        "power_w": lambda: _power(smi.amdsmi_get_power_info(handle)),
        "temperature_c": lambda: smi.amdsmi_get_temp_metric(handle, hot, now),
        "throttling": lambda: violations_now(smi.amdsmi_get_violation_status(handle)),
        "violations": lambda: _counted(smi.amdsmi_get_violation_status(handle)),
        "users": lambda: len(smi.amdsmi_get_gpu_process_list(handle)),
        "others": lambda: _others(process["pid"] for process in smi.amdsmi_get_gpu_process_list(handle)),
    }


def _nvidia(nvml: Any, address: str) -> dict[str, Callable[[], Any]] | None:
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        handle = next(h for h in handles if _same(nvml.nvmlDeviceGetPciInfo(h).busId, address) or count == 1)
    except Exception:
        return None
    return {
        "clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttling": lambda: event_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        "violations": lambda: _violation_ns(nvml, handle),
        "users": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        "others": lambda: _others(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }


def _others(pids: Iterable[int]) -> int:
    """Processes but this one. A container may be told the node's numbers, and then it counts itself among them."""
    return sum(pid != os.getpid() for pid in pids)


def _same(said: Any, address: str) -> bool:
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return bool(pci_address(address)) and pci_address(text) == pci_address(address)


def _power(info: dict[str, Any]) -> Any:
    """Boards of one generation say the momentary power, of another the average."""
    said = (info.get(name) for name in ("current_socket_power", "average_socket_power", "socket_power"))
    return next((watts for watts in said if isinstance(watts, (int, float))), UNKNOWN)


def _counted(status: dict[str, Any]) -> int:
    """Time under any limit so far, by amdsmi's accumulators."""
    totals = [value for name, value in status.items() if name.startswith("acc_") and name != "acc_counter"]
    return sum(value for value in totals if isinstance(value, int))


def _violation_ns(nvml: Any, handle: Any) -> int:
    """Nanoseconds that power and heat have held the clocks down so far."""
    total = 0
    for policy in (nvml.NVML_PERF_POLICY_POWER, nvml.NVML_PERF_POLICY_THERMAL):
        with suppress(Exception):
            total += int(nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime)
    return total
