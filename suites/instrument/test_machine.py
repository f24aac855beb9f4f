"""A fact that is missing from a record reads like one that did not matter: two figures get compared across a power cap.
And a telemetry library whose import raises KeyError must not take the whole fingerprint with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.gpus import FACTS, MOMENTARY, list_gpus, load_optional
from harness.host import Host, Outcome, TorchFacts, run_command, version_tuple
from harness.machine import fingerprint, recorded_variables, revision, rocm_version, series_key
from harness.revision import carry, engine_and_harness
from suites.instrument.fake_host import CPU_TORCH, CUDA_TORCH, H200, MI300X, ROCM_TORCH, make_host


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, f"{path}[]")
    else:
        yield path, value


# The whole fingerprint ----------------------------------------------------------------------------------------------


def test_a_machine_that_tells_nothing_still_gives_every_fact_as_unknown(tmp_path: Path) -> None:
    silent = Host(
        root=tmp_path / "empty",
        environ={},
        run=lambda command: None,
        version=lambda name: None,
        package_folder=lambda name: None,
        torch=lambda: TorchFacts(error="ImportError"),
        which=lambda name: None,
    )
    told = make_host(tmp_path / "laptop")
    quiet, full = fingerprint(silent), fingerprint(told)
    assert set(quiet) == set(full)
    for group in ("cpu", "numa", "os", "software", "now"):
        assert set(quiet[group]) == set(full[group])
    assert quiet["software"]["torch"] == quiet["software"]["compiler"] == quiet["memory_mib"] == "unknown"
    assert all(value is not None and value != "" for _, value in leaves(quiet))


def test_a_fingerprint_is_plain_data_that_a_record_can_carry() -> None:
    facts = fingerprint()
    assert json.loads(json.dumps(facts)) == facts


def test_what_a_laptop_says_of_itself_is_read_from_the_right_places(tmp_path: Path) -> None:
    facts = fingerprint(make_host(tmp_path, {"/run/.containerenv": 'engine="x"\nimageid="sha256:0123"\n'}))
    assert facts["cpu"]["model"] == "Some CPU (R) 3000"
    assert facts["cpu"]["flags"] == ["amx_tile", "avx512f"]
    assert facts["memory_mib"] == 16384
    assert facts["numa"] == {"nodes": 1, "cpus": {"node0": "0-3"}, "balancing": "0"}
    assert (facts["os"]["name"], facts["os"]["image_digest"]) == ("Some Linux 12", "sha256:0123")
    assert facts["software"]["compiler"] == "g++ (Some Linux) 12.2.0"
    assert facts["software"]["transformers"] == "5.0.0"
    assert (facts["gpus"], facts["visible_gpus"]) == ([], 0)


def test_aiter_means_amds_distribution_and_no_other(tmp_path: Path) -> None:
    assert fingerprint(make_host(tmp_path, version={"aiter": "0.13.0"}.get))["software"]["aiter"] == "unknown"
    assert fingerprint(make_host(tmp_path, version={"amd-aiter": "0.1.7"}.get))["software"]["aiter"] == "0.1.7"


def test_only_variables_with_known_prefixes_are_recorded_and_what_may_be_confidential_is_hidden() -> None:
    recorded = recorded_variables(
        {
            "HOME": "/home/somebody",
            "AWS_SECRET_ACCESS_KEY": "s3cret",
            "HF_TOKEN": "s3cret",
            "CUDA_HOME": "/usr",
            "HIP_VISIBLE_DEVICES": "0",
            "HSA_XNACK": "1",
            "ROCR_VISIBLE_DEVICES": "1",
            "OMP_NUM_THREADS": "2",
            "TRITON_CACHE_DIR": "/home/somebody/cache",
            "TORCHINDUCTOR_REDIS_URL": "redis://me:s3cret@host",
            "PYTORCH_API_TOKEN": "s3cret",
        }
    )
    assert recorded == {
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_XNACK": "1",
        "OMP_NUM_THREADS": "2",
        "PYTORCH_API_TOKEN": "(hidden)",
        "ROCR_VISIBLE_DEVICES": "1",
        "TORCHINDUCTOR_REDIS_URL": "(hidden)",
        "TRITON_CACHE_DIR": "~/cache",
    }


@pytest.mark.parametrize(
    ("torch", "files", "versions", "expected"),
    [
        (ROCM_TORCH, {}, {}, "7.2.1"),
        (replace(ROCM_TORCH, rocm="unknown"), {}, {"rocm-sdk-core": "7.9.0rc1"}, "7.9.0rc1"),
        (replace(ROCM_TORCH, rocm="unknown"), {"/opt/rocm/.info/version": "7.1.0-43\n"}, {}, "7.1.0"),
        (replace(ROCM_TORCH, rocm="unknown"), {}, {}, "unknown"),
    ],
)
def test_the_rocm_version_is_that_of_torch_then_of_its_wheels_then_of_the_installation(
    tmp_path: Path, torch: TorchFacts, files: dict[str, str], versions: dict[str, str], expected: str
) -> None:
    assert rocm_version(make_host(tmp_path, files, version=versions.get), torch) == expected


def test_hipblaslt_is_known_by_its_header_or_by_its_librarys_name(tmp_path: Path) -> None:
    header = "#define HIPBLASLT_VERSION_MAJOR 1\n#define HIPBLASLT_VERSION_MINOR 2\n#define HIPBLASLT_VERSION_PATCH 3\n"
    named = {"/opt/rocm/include/hipblaslt/hipblaslt-version.h": header}
    assert fingerprint(make_host(tmp_path / "a", named))["software"]["hipblaslt"] == "1.2.3"
    library = {"/opt/rocm/lib/libhipblaslt.so.1": "", "/opt/rocm/lib/libhipblaslt.so.1.0.70201": ""}
    assert fingerprint(make_host(tmp_path / "b", library))["software"]["hipblaslt"] == "1.0.70201"


# GPUs ---------------------------------------------------------------------------------------------------------------


def amdsmi(**changes: Any) -> Any:
    """amdsmi's calls as they answer on an MI300X under ROCm 7; `changes` replaces some."""
    calls: dict[str, Callable[..., Any]] = {
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["h0"],
        "amdsmi_get_gpu_asic_info": lambda h: {
            "market_name": "AMD Instinct MI300X",
            "target_graphics_version": "gfx942",
        },
        "amdsmi_get_gpu_vram_info": lambda h: {"vram_size": 196592},
        "amdsmi_get_gpu_device_bdf": lambda h: "0000:05:00.0",
        "amdsmi_get_gpu_compute_partition": lambda h: "SPX",
        "amdsmi_get_gpu_memory_partition": lambda h: "NPS1",
        "amdsmi_get_power_cap_info": lambda h: {"power_cap": 750_000_000},
        "amdsmi_get_gpu_driver_info": lambda h: {"driver_version": "6.12.12"},
        "amdsmi_get_fw_info": lambda h: {
            "fw_list": [{"fw_name": SimpleNamespace(name="PM"), "fw_version": "04.85.12"}]
        },
        "amdsmi_get_clock_info": lambda h, kind: {"clk": {"gfx": 2100, "mem": 1300}[kind]},
        "amdsmi_get_temp_metric": lambda h, sensor, metric: 41,
        "amdsmi_get_violation_status": lambda h: {"active_ppt_pwr": True, "active_hbm_thrm": False, "acc_ppt_pwr": 9},
    }
    enums = {
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT=1),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT=0),
    }
    return SimpleNamespace(**{**calls, **enums, **changes})


def fails(*arguments: Any) -> Any:
    raise RuntimeError("not supported")


def loading(**modules: Any) -> Callable[[str], ModuleType | None]:
    return modules.get


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


SMI_ROW = (
    "NVIDIA H200, 9.0, 143771, 00000000:04:00.0, Disabled, 700.00, 575.57.08, 96.00.CF.00.02, "
    "345, 3201, 28, 0x0000000000000004\n"
)


def nvidia_smi(row: str) -> dict[str, Any]:
    return {"which": lambda name: name, "run": lambda command: Outcome(0, row if command[0] == "nvidia-smi" else "")}


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


# Which timings belong together ----------------------------------------------------------------------------------------


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


# Which code ran -------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "model.py").write_text("x = 1\n")
    (folder / ".gitignore").write_text("results\n")
    git(folder, "init", "-q")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")


def test_a_clean_checkout_is_named_by_its_commit(checkout: Path) -> None:
    assert revision(checkout) == {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": "no", "dirty_digest": ""}
    (checkout / "results").mkdir()
    (checkout / "results" / "run.jsonl").write_text("{}")
    assert revision(checkout)["dirty"] == "no"


def test_every_kind_of_edit_makes_another_tree_and_undoing_it_makes_the_same_again(checkout: Path) -> None:
    def edit(change: Callable[[], Any]) -> str:
        change()
        found = revision(checkout)
        git(checkout, "reset", "-q", "--hard")
        git(checkout, "clean", "-qfd")
        assert found["dirty"] == "yes"
        return found["dirty_digest"]

    model, new = checkout / "model.py", checkout / "new.py"
    digests = [
        edit(lambda: model.write_text("x = 2\n")),
        edit(lambda: model.write_text("x = 3\n")),
        edit(lambda: model.chmod(0o755)),
        edit(model.unlink),
        edit(lambda: new.write_text("y = 1\n")),
        edit(lambda: new.write_text("y = 2\n")),
        edit(lambda: new.symlink_to("nowhere")),
    ]
    assert len(set(digests)) == len(digests)
    assert edit(lambda: model.write_text("x = 2\n")) == digests[0]
    assert revision(checkout)["dirty"] == "no"


def test_what_runs_leave_in_results_is_no_edit_of_the_code(checkout: Path) -> None:
    """asv's pages are written each night, and the next night was no longer of a clean commit."""
    (checkout / "results" / "asv").mkdir(parents=True)
    (checkout / "results" / "asv" / "benchmarks.json").write_text("{}")
    assert revision(checkout)["dirty"] == "no"
    commit_all = ("add", "-f", "results"), ("commit", "-q", "-m", "kept")
    for arguments in commit_all:
        git(checkout, *arguments)
    (checkout / "results" / "asv" / "benchmarks.json").write_text("{ }")
    assert revision(checkout)["dirty"] == "no"


def test_a_harness_laid_over_another_commit_says_what_both_are(checkout: Path, tmp_path: Path) -> None:
    root = tmp_path / "laid"
    for folder in ("harness", "engine"):
        (root / folder).mkdir(parents=True)
    (root / "engine" / "model.py").write_text("x = 1\n")
    carry(root, "engine", "c" * 40, checkout)
    clean = {"commit": "c" * 40, "dirty": "no", "dirty_digest": ""}
    assert engine_and_harness(root, "engine") == (clean, revision(checkout))
    (root / "engine" / "model.py").write_text("x = 2\n")
    of_engine, _ = engine_and_harness(root, "engine")
    assert (of_engine["commit"], of_engine["dirty"]) == ("c" * 40, "yes")
    assert of_engine["dirty_digest"]
    assert engine_and_harness(checkout, "engine") == (revision(checkout), revision(checkout))


def test_a_staged_edit_counts_like_one_that_is_not(checkout: Path) -> None:
    (checkout / "model.py").write_text("x = 2\n")
    unstaged = revision(checkout)
    git(checkout, "add", "-A")
    assert revision(checkout) == unstaged


def test_a_subfolder_speaks_for_its_whole_checkout(checkout: Path) -> None:
    (checkout / "below").mkdir()
    (checkout / "model.py").write_text("x = 2\n")
    assert revision(checkout / "below") == revision(checkout)


@pytest.mark.parametrize("with_git", [True, False])
def test_without_git_or_a_checkout_the_sources_themselves_are_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_git: bool
) -> None:
    if not with_git:
        monkeypatch.setenv("PATH", str(tmp_path))
    copy = tmp_path / "copy"
    (copy / "results").mkdir(parents=True)
    (copy / "a.py").write_text("x = 1\n")
    before = revision(copy)
    assert (before["commit"], before["dirty"]) == ("unknown", "unknown")
    (copy / "results" / "run.py").write_text("left behind by a run")
    assert revision(copy) == before
    (copy / "a.py").write_text("x = 2\n")
    assert revision(copy)["dirty_digest"] != before["dirty_digest"]


def test_reading_a_revision_leaves_the_checkout_untouched(checkout: Path) -> None:
    (checkout / "model.py").write_text("x = 2\n")
    index = (checkout / ".git" / "index").read_bytes()
    os.utime(checkout / "model.py")
    revision(checkout)
    assert (checkout / ".git" / "index").read_bytes() == index
    assert git(checkout, "status", "--porcelain") == "M model.py"


# Asking ---------------------------------------------------------------------------------------------------------------


def test_a_command_that_hangs_or_is_missing_is_no_answer_and_no_exception() -> None:
    assert run_command([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2) is None
    assert run_command(["no-such-command-anywhere"]) is None
    assert run_command([sys.executable, "-c", "print('x'); raise SystemExit(3)"]) == Outcome(3, "x\n", "")


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.11.0+rocm7.2", (2, 11, 0)), ("7.14", (7, 14)), ("2.8.0a0+git1", (2, 8, 0)), ("unknown", ())],
)
def test_a_version_is_compared_by_its_leading_numbers(text: str, version: tuple[int, ...]) -> None:
    assert version_tuple(text) == version


def test_a_cpu_build_of_torch_is_known_to_have_no_cuda_rather_than_unknown() -> None:
    assert not CPU_TORCH.built_for_gpu
    assert CUDA_TORCH.built_for_gpu
    assert ROCM_TORCH.built_for_gpu
    assert not TorchFacts(error="broken").built_for_gpu
