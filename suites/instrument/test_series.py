"""Which timings belong together: figures of two power caps in one series look like a regression, or hide one.

And a series that is named anew whenever a driver or a telemetry library changes never sees what the change cost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.gpus import MOMENTARY, list_gpus
from harness.host import TorchFacts
from harness.machine import fingerprint, series_key
from suites.instrument.fake_host import CUDA_TORCH, ROCM_TORCH, make_host
from suites.instrument.fake_telemetry import SMI_ROW, amdsmi, fails, loading, nvidia_smi


def node(tmp_path: Path, torch: TorchFacts = ROCM_TORCH, **smi: Any) -> dict[str, Any]:
    facts = fingerprint(make_host(tmp_path, torch=torch))
    return {**facts, "gpus": list_gpus(make_host(tmp_path, torch=torch), loading(amdsmi=amdsmi(**smi)))}


def test_a_series_has_a_name_that_a_folder_can_carry_and_a_person_can_read(tmp_path: Path) -> None:
    key = series_key(node(tmp_path), "cuda")
    assert key.startswith("1x-amd-instinct-mi300x-spx-750w-")
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert series_key(fingerprint(make_host(tmp_path)), "cpu").startswith("cpu-some-cpu-3000-4-cores-")


@pytest.mark.parametrize(
    "smi",
    [
        {"amdsmi_get_gpu_compute_partition": lambda h: "CPX"},
        {"amdsmi_get_gpu_memory_partition": lambda h: "NPS4"},
        {"amdsmi_get_power_cap_info": lambda h: {"power_cap": 550_000_000}},
    ],
)
def test_another_setting_of_the_same_gpu_is_another_series(tmp_path: Path, smi: dict[str, Any]) -> None:
    assert series_key(node(tmp_path, **smi), "cuda") != series_key(node(tmp_path), "cuda")


def test_software_and_the_moment_do_not_start_a_new_series_because_they_are_what_is_judged(tmp_path: Path) -> None:
    newer = node(
        tmp_path,
        replace(ROCM_TORCH, version="2.12.0", rocm="7.14.0", hip="7.14.1"),
        amdsmi_get_gpu_driver_info=lambda h: {"driver_version": "6.16"},
        amdsmi_get_clock_info=lambda h, kind: {"clk": 500},
        amdsmi_get_violation_status=fails,
        amdsmi_get_temp_metric=lambda h, sensor, metric: 90,
    )
    before = node(tmp_path)
    assert any(newer["gpus"][0][name] != before["gpus"][0][name] for name in MOMENTARY)
    assert series_key(newer, "cuda") == series_key(before, "cuda")


def test_installing_a_telemetry_library_does_not_rename_the_series_of_a_gpu_that_it_knows_alike(tmp_path: Path) -> None:
    host = make_host(tmp_path, torch=CUDA_TORCH, **nvidia_smi(SMI_ROW.replace("143771", "143155")))
    nvml: Any = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: "h",
        nvmlDeviceGetName=lambda h: "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda h: SimpleNamespace(total=143771 << 20),
        nvmlDeviceGetEnforcedPowerLimit=lambda h: 700_000,
        nvmlDeviceGetMigMode=lambda h: (0, 0),
        nvmlDeviceGetCudaComputeCapability=lambda h: (9, 0),
    )
    before, after = (
        {**fingerprint(host), "gpus": list_gpus(host, loading(**found))} for found in ({}, {"pynvml": nvml})
    )
    assert before["gpus"][0]["memory_mib"] != after["gpus"][0]["memory_mib"]
    assert series_key(before, "cuda") == series_key(after, "cuda")


def test_the_cpus_and_the_gpus_of_one_node_are_two_series(tmp_path: Path) -> None:
    facts = node(tmp_path)
    assert series_key(facts, "cpu") == series_key(fingerprint(make_host(tmp_path)), "cpu") != series_key(facts, "cuda")
    two_cores = fingerprint(make_host(tmp_path, cores=2))
    assert series_key(two_cores, "cpu") != series_key(facts, "cpu")
