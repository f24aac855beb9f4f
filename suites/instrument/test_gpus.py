"""A telemetry library whose call is missing, or whose import raises KeyError, must cost only what it alone knows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.gpus import FACTS, list_gpus, load_optional
from suites.instrument.fake_host import CUDA_TORCH, H200, MI300X, ROCM_TORCH, make_host
from suites.instrument.fake_telemetry import SMI_ROW, amdsmi, fails, loading, nvidia_smi


def test_an_mi300x_is_described_with_its_partitions_cap_firmware_and_throttling(tmp_path: Path) -> None:
    assert list_gpus(make_host(tmp_path, torch=ROCM_TORCH), loading(amdsmi=amdsmi())) == [
        {
            "name": "AMD Instinct MI300X",
            "arch": "gfx942",
            "memory_mib": 196592,
            "pci": "0000:05:00.0",
            "compute_partition": "SPX",
            "memory_partition": "NPS1",
            "power_cap_w": 750,
            "driver": "6.12.12",
            "firmware": "PM=04.85.12",
            "clock_mhz": 2100,
            "memory_clock_mhz": 1300,
            "temperature_c": 41,
            "throttling": "ppt_pwr",
        }
    ]


def test_a_call_that_the_driver_does_not_have_costs_only_its_own_fact(tmp_path: Path) -> None:
    half = amdsmi(amdsmi_get_power_cap_info=fails, amdsmi_get_violation_status=lambda h: {"active_ppt_pwr": "N/A"})
    del half.amdsmi_get_fw_info
    (gpu,) = list_gpus(make_host(tmp_path, torch=ROCM_TORCH), loading(amdsmi=half))
    assert [name for name in FACTS if gpu[name] == "unknown"] == ["power_cap_w", "firmware", "throttling"]


@pytest.mark.parametrize("broken", [{"amdsmi_init": fails}, {"amdsmi_get_processor_handles": fails}])
def test_without_amdsmi_the_drivers_own_files_and_torch_are_asked(tmp_path: Path, broken: dict[str, Any]) -> None:
    card = "/sys/class/drm/card1/device"
    files = {
        "/sys/class/drm/card0/device/vendor": "0x1a03",  # the board's own display adapter is no GPU to us
        f"{card}/vendor": "0x1002",
        f"{card}/current_compute_partition": "CPX",
        f"{card}/current_memory_partition": "NPS4",
        f"{card}/hwmon/hwmon7/power1_cap": "550000000",
        f"{card}/pp_dpm_sclk": "0: 132Mhz\n1: 2100Mhz *\n",
        "/sys/module/amdgpu/version": "6.12.12",
    }
    (gpu,) = list_gpus(make_host(tmp_path, files, ROCM_TORCH), loading(amdsmi=amdsmi(**broken)))
    assert (gpu["name"], gpu["arch"], gpu["memory_mib"]) == MI300X
    assert (gpu["compute_partition"], gpu["memory_partition"], gpu["power_cap_w"]) == ("CPX", "NPS4", 550)
    assert (gpu["clock_mhz"], gpu["memory_clock_mhz"], gpu["driver"]) == (2100, "unknown", "6.12.12")


def test_without_nvml_nvidia_smi_is_asked(tmp_path: Path) -> None:
    (gpu,) = list_gpus(make_host(tmp_path, torch=CUDA_TORCH, **nvidia_smi(SMI_ROW)), loading())
    assert (gpu["name"], gpu["arch"], gpu["memory_mib"]) == H200
    assert (gpu["power_cap_w"], gpu["compute_partition"], gpu["driver"]) == (700, "whole", "575.57.08")
    assert (gpu["throttling"], gpu["memory_partition"]) == ("power_cap", "unknown")


def test_a_field_that_nvidia_smi_does_not_know_is_unknown_and_torch_fills_what_it_can(tmp_path: Path) -> None:
    row = "[N/A], [N/A], [N/A], x, [N/A], [N/A], 575, [N/A], [N/A], [N/A], [N/A], [N/A]\n"
    (gpu,) = list_gpus(make_host(tmp_path, torch=CUDA_TORCH, **nvidia_smi(row)), loading())
    assert (gpu["name"], gpu["arch"], gpu["memory_mib"]) == H200
    assert (gpu["driver"], gpu["power_cap_w"], gpu["throttling"]) == ("575", "unknown", "unknown")


@pytest.mark.parametrize(
    ("bits", "shown"), [(0, "none"), (1, "none"), (2, "none"), (4, "power_cap"), (0x24, "power_cap sw_thermal")]
)
def test_nvml_reasons_are_words_and_an_idle_gpu_is_not_throttled(tmp_path: Path, bits: int, shown: str) -> None:
    nvml: Any = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: "h",
        nvmlDeviceGetName=lambda h: b"NVIDIA H200",
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda h: bits,
    )
    (gpu,) = list_gpus(make_host(tmp_path, torch=CUDA_TORCH), loading(pynvml=nvml))
    assert (gpu["name"], gpu["throttling"], gpu["memory_mib"]) == ("NVIDIA H200", shown, 143771)


def test_an_optional_module_may_fail_to_import_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in (("telemetry_a", "raise KeyError('ROCM_PATH')"), ("telemetry_b", "raise OSError('no library')")):
        (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [load_optional(name) for name in ("telemetry_a", "telemetry_b", "telemetry_missing")] == [None] * 3
    assert load_optional("json") is json
