"""A sign-off passes on a GPU node while every cell runs on its CPU: the container lacks /dev/dri, so torch sees no GPU.
Whatever can be wrong with a machine is made up here, and the doctor has to name it; a healthy one hears nothing.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.checkup import gpu
from harness.checkup.finding import Finding, Patient
from harness.doctor import choose_device, diagnose
from harness.errors import UnfitError, UsageError
from harness.host import UNKNOWN, Host, Outcome, TorchFacts
from suites.instrument.fake_host import CPU_TORCH, CUDA_TORCH, MI300X, ROCM_TORCH, answer, make_host

AMD_NODES = {"/dev/kfd": "", "/dev/dri/renderD128": ""}
NVIDIA_NODES = {"/dev/nvidia3": ""}


def bad(host: Host, device: str | None = None, results: Path = Path("results")) -> dict[str, Finding]:
    """What the doctor finds wrong, by name."""
    return {finding.name: finding for finding in diagnose(device, results=results, host=host) if not finding.ok}


def only(found: dict[str, Finding], name: str, severity: str, text: str) -> Finding:
    """Exactly one thing is wrong, and it is this."""
    assert list(found) == [name], found
    assert found[name].severity == severity
    assert text in found[name].message
    assert found[name].way_out
    return found[name]


# Healthy machines: the control of every test below --------------------------------------------------------------------


def test_a_healthy_laptop_hears_nothing(tmp_path: Path) -> None:
    assert bad(make_host(tmp_path)) == {}


@pytest.mark.parametrize("torch", [replace(ROCM_TORCH, rocm="7.14.0"), CUDA_TORCH])
def test_a_healthy_gpu_node_hears_only_that_its_clocks_cannot_be_read(tmp_path: Path, torch: TorchFacts) -> None:
    nodes = AMD_NODES if torch.hip != "none" else NVIDIA_NODES
    only(bad(make_host(tmp_path, nodes, torch)), "clocks", "note", "cannot be read")


def test_every_finding_is_a_sentence_and_every_refusal_or_warning_has_a_way_out(
    tmp_path: Path,
) -> None:
    torch = TorchFacts(error="OSError: libamdhip64.so.7: cannot open shared object file")
    host = make_host(tmp_path, AMD_NODES, torch, python=(3, 9, 2), which=lambda name: None, free_bytes=lambda folder: 0)
    findings = diagnose(host=host)
    assert {finding.name for finding in findings if finding.severity == "unfit"} >= {
        "python",
        "torch",
        "gpu",
        "compiler",
        "disk",
    }
    for finding in findings:
        assert finding.message.endswith("."), finding
        assert finding.severity == "note" or finding.way_out, finding


# GPUs -----------------------------------------------------------------------------------------------------------------

BLIND: dict[str, tuple[dict[str, str], TorchFacts, dict[str, Any], str]] = {
    "a CPU torch": (AMD_NODES, CPU_TORCH, {}, "is built for the CPU only"),
    "a CPU torch beside NVIDIA": (NVIDIA_NODES, CPU_TORCH, {}, "is built for the CPU only"),
    "a CUDA torch": (AMD_NODES, replace(CUDA_TORCH, gpus=()), {}, "the GPU is AMD's"),
    "a hidden GPU": (
        AMD_NODES,
        replace(ROCM_TORCH, gpus=()),
        {"environ": {"ROCR_VISIBLE_DEVICES": ""}},
        "ROCR_VISIBLE_DEVICES hides every GPU",
    ),
    "no permission": (
        AMD_NODES,
        replace(ROCM_TORCH, gpus=()),
        {"may_use": lambda path: False},
        "may not open /dev/kfd",
    ),
    "half a container": ({"/dev/kfd": ""}, replace(ROCM_TORCH, gpus=()), {}, "/dev/dri is missing"),
    "an old driver": (NVIDIA_NODES, replace(CUDA_TORCH, gpus=()), {}, "the driver and this torch do not work together"),
}


@pytest.mark.parametrize("case", BLIND)
def test_a_gpu_that_torch_does_not_see_is_unfit_and_its_likeliest_reason_is_named(tmp_path: Path, case: str) -> None:
    nodes, torch, changes, reason = BLIND[case]
    host = make_host(tmp_path, nodes, torch, **changes)
    only(bad(host), "gpu", "unfit", reason)
    with pytest.raises(UnfitError, match="--device cpu") as caught:
        choose_device(None, host)
    assert caught.value.exit_code == 4
    assert reason in str(caught.value)


@pytest.mark.parametrize("case", BLIND)
def test_asking_for_the_cpu_by_name_excuses_an_unused_gpu_and_still_mentions_it(tmp_path: Path, case: str) -> None:
    nodes, torch, changes, reason = BLIND[case]
    host = make_host(tmp_path, nodes, torch, **changes)
    only(bad(host, device="cpu"), "gpu", "note", reason)
    assert choose_device("cpu", host) == "cpu"


@pytest.mark.parametrize(
    ("torch", "nodes", "requested", "chosen"),
    [
        (CPU_TORCH, {}, None, "cpu"),
        (CPU_TORCH, {}, "cpu", "cpu"),
        (ROCM_TORCH, AMD_NODES, None, "cuda"),
        (CUDA_TORCH, NVIDIA_NODES, "cuda", "cuda"),
        (CUDA_TORCH, NVIDIA_NODES, "cuda:0", "cuda:0"),
        (CUDA_TORCH, {}, None, "cuda"),
        (CUDA_TORCH, NVIDIA_NODES, "cpu", "cpu"),
    ],
)
def test_the_device_is_the_gpu_where_torch_sees_one_and_the_cpu_where_there_is_none(
    tmp_path: Path, torch: TorchFacts, nodes: dict[str, str], requested: str | None, chosen: str
) -> None:
    assert choose_device(requested, make_host(tmp_path, nodes, torch)) == chosen


def test_a_gpu_that_was_asked_for_and_is_not_there_is_unfit(tmp_path: Path) -> None:
    with pytest.raises(UnfitError, match=r"cuda was asked for, but this machine shows no GPU"):
        choose_device("cuda", make_host(tmp_path))
    with pytest.raises(UnfitError, match=r"'cuda:1': torch sees 1 of them"):
        choose_device("cuda:1", make_host(tmp_path, NVIDIA_NODES, CUDA_TORCH))


@pytest.mark.parametrize("name", ["gpu", "rocm", "cuda:x", "", "CPU"])
def test_a_name_that_is_no_device_is_a_usage_error_and_never_a_default(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="choose cpu or cuda"):
        choose_device(name, make_host(tmp_path))


def test_a_gpu_that_torch_sees_but_cannot_record_on_is_unfit(tmp_path: Path) -> None:
    def run(command: Any) -> Outcome | None:
        failed = Outcome(1, "", "Traceback\ntorch.AcceleratorError: HIP error: invalid device function\n")
        return failed if "-c" in command else answer(command)

    found = bad(make_host(tmp_path, AMD_NODES, replace(ROCM_TORCH, rocm="7.14"), run=run))
    assert found["gpu-works"].severity == "unfit"
    assert "HIP error: invalid device function" in found["gpu-works"].message
    assert "gpu-works" not in bad(make_host(tmp_path, AMD_NODES, ROCM_TORCH, run=run), device="cpu")


def test_a_gpu_that_never_answers_is_unfit_and_does_not_hang_the_doctor(tmp_path: Path) -> None:
    host = make_host(
        tmp_path, NVIDIA_NODES, CUDA_TORCH, run=lambda command: None if "-c" in command else answer(command)
    )
    assert "did not come back in time" in bad(host)["gpu-works"].message


@pytest.mark.parametrize(
    ("rocm", "hip", "text"),
    [
        ("7.1.0", "7.1.1", "below 7.2.1"),
        ("7.2.0", "7.2.26015", "below 7.2.1"),
        ("unknown", "7.2.26015-fc0010cf6a", "7.2.26015-fc0010cf6a (HIP's number)"),
        ("7.2.1", "7.2.53211", "below 7.14"),
        ("7.9.0", "7.9.1", "below 7.14"),
        ("7.14.0", "7.14.1", None),
        ("8.0.0", "8.0.1", None),
    ],
)
def test_rocm_versions_that_break_captures_or_hide_their_errors_are_warned_of(
    tmp_path: Path, rocm: str, hip: str, text: str | None
) -> None:
    found = bad(make_host(tmp_path, AMD_NODES, replace(ROCM_TORCH, rocm=rocm, hip=hip))).get("rocm")
    assert (found is None) == (text is None)
    if text and found:
        assert found.severity == "warn"
        assert text in found.message


def test_gpus_that_are_not_set_alike_are_warned_of(tmp_path: Path) -> None:
    cards: dict[str, str] = {}
    for index, cap in enumerate((750, 550)):
        card = f"/sys/class/drm/card{index}/device"
        cards |= {f"{card}/vendor": "0x1002", f"{card}/hwmon/hwmon3/power1_cap": str(cap * 1_000_000)}
    torch = replace(ROCM_TORCH, rocm="7.14.0", gpus=(MI300X, MI300X))
    found = bad(make_host(tmp_path, {**AMD_NODES, **cards}, torch))
    assert "differ in power_cap_w" in found["settings"].message


def test_settings_of_a_node_that_make_timings_wander_are_warned_of_on_a_gpu_only(tmp_path: Path) -> None:
    files = {**AMD_NODES, "/proc/sys/kernel/numa_balancing": "1", "/dev/shm/x": ""}
    torch = replace(ROCM_TORCH, rocm="7.14.0", gpus=(MI300X, MI300X))
    host = make_host(tmp_path, files, torch, total_bytes=lambda folder: 64 << 20)
    assert {"numa", "shm"} <= set(bad(host))
    assert not {"numa", "shm"} & set(bad(host, device="cpu"))


# Software -------------------------------------------------------------------------------------------------------------


def test_an_old_python_is_unfit(tmp_path: Path) -> None:
    only(bad(make_host(tmp_path, python=(3, 10, 9))), "python", "unfit", "3.10.9 is older than 3.11")


@pytest.mark.parametrize(
    ("version", "fit"), [("2.7.1", False), ("2.8.0a0+git1", True), ("2.10.0", True), ("2.13.0", True)]
)
def test_torch_below_2_8_is_unfit_and_versions_compare_as_numbers(tmp_path: Path, version: str, fit: bool) -> None:
    assert ("torch" in bad(make_host(tmp_path, torch=replace(CPU_TORCH, version=version)))) is not fit


def test_a_torch_that_cannot_be_imported_is_unfit_with_its_own_words(tmp_path: Path) -> None:
    host = make_host(tmp_path, torch=TorchFacts(error="ImportError: libtorch.so: no such file"))
    only(bad(host), "torch", "unfit", "ImportError: libtorch.so: no such file")


def test_a_missing_compiler_is_unfit_under_the_name_that_was_looked_for(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"which": lambda name: None}
    only(bad(make_host(tmp_path, **nothing)), "compiler", "unfit", "g++ is not on the path")
    host = make_host(tmp_path, environ={"CXX": "clang++-19"}, **nothing)
    only(bad(host), "compiler", "unfit", "clang++-19 is not on the path")


def test_a_compiler_without_the_headers_is_unfit_with_its_first_error(tmp_path: Path) -> None:
    stderr = (
        "In file included from probe.cpp:\nprobe.cpp:2:10: fatal error: Python.h: No such file or directory\nmore\n"
    )
    only(
        bad(make_host(tmp_path, run=lambda command: Outcome(1, "", stderr))),
        "compiler",
        "unfit",
        "fatal error: Python.h",
    )


def test_the_real_compiler_really_builds_and_a_broken_one_is_seen() -> None:
    real = [finding for finding in diagnose() if finding.name == "compiler"]
    assert [finding.ok for finding in real] == [True], real
    broken = replace(Host(), environ={"CXX": "/bin/false"})
    found = [finding for finding in diagnose(host=broken) if finding.name == "compiler"]
    assert [finding.severity for finding in found if not finding.ok] == ["unfit"]


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_a_variable_that_turns_compilation_off_is_unfit_everywhere(tmp_path: Path, name: str) -> None:
    only(bad(make_host(tmp_path, environ={name: "1"})), "variables", "unfit", f"{name}=1 turns every compilation level")
    assert bad(make_host(tmp_path, environ={name: "0"})) == {}


def test_torch_really_obeys_the_variables_that_are_called_unfit(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import torch\n"
        "def backend(graph, inputs): print('compiled'); return graph.forward\n"
        "torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))\n"
        "print('ran')"
    )
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        environ = {**Host().environ, name: "1"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
        assert done.stdout == "ran\n", name
    exec(code, {})
    assert capsys.readouterr().out == "compiled\nran\n"


@pytest.mark.parametrize(
    ("name", "severity"),
    [("HIP_LAUNCH_BLOCKING", "warn"), ("PYTORCH_NO_CUDA_MEMORY_CACHING", "unfit"), ("TRITON_INTERPRET", "unfit")],
)
def test_a_variable_that_only_matters_on_a_gpu_is_quiet_on_a_laptop(tmp_path: Path, name: str, severity: str) -> None:
    assert bad(make_host(tmp_path, environ={name: "1"})) == {}
    found = bad(make_host(tmp_path, AMD_NODES, ROCM_TORCH, environ={name: "1"}))
    assert found["variables"].severity == severity


def test_a_pair_of_asv_and_runner_that_was_not_tried_is_warned_of_and_none_is_a_note(tmp_path: Path) -> None:
    versions = {"asv": "0.6.6", "asv_runner": "0.2.5"}
    only(
        bad(make_host(tmp_path, version=versions.get)), "asv", "warn", "asv 0.6.6 and asv_runner 0.2.5 is not the pair"
    )
    only(bad(make_host(tmp_path, version={"asv": "0.6.6"}.get)), "asv", "warn", "asv_runner (missing)")
    only(bad(make_host(tmp_path, version={}.get)), "asv", "note", "asv is not installed")


def test_the_unrelated_package_called_aiter_is_not_taken_for_amds(tmp_path: Path) -> None:
    unrelated, amds = tmp_path / "a" / "aiter", tmp_path / "b" / "aiter"
    unrelated.mkdir(parents=True)
    (amds / "ops").mkdir(parents=True)
    torch = replace(ROCM_TORCH, rocm="7.14.0")
    found = bad(make_host(tmp_path / "root", AMD_NODES, torch, package_folder=lambda name: unrelated))
    assert "not AMD's library" in found["aiter"].message
    assert "amd-aiter" in found["aiter"].way_out
    assert "aiter" not in bad(make_host(tmp_path / "root", AMD_NODES, torch, package_folder=lambda name: amds))


# Room -----------------------------------------------------------------------------------------------------------------


def test_little_memory_is_warned_of_and_a_containers_limit_counts(tmp_path: Path) -> None:
    low = {"/proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"}
    only(bad(make_host(tmp_path / "low", low)), "memory", "warn", "4096 of 8192 MiB")
    capped = {"/sys/fs/cgroup/memory.max": str(4 << 30), "/sys/fs/cgroup/memory.current": str(1 << 30)}
    only(bad(make_host(tmp_path / "capped", capped)), "memory", "warn", "3072 of 4096 MiB")
    unlimited = {"/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/memory.current": "1"}
    assert bad(make_host(tmp_path / "unlimited", unlimited)) == {}


@pytest.mark.parametrize(("free_mib", "severity"), [(100, "unfit"), (2000, "warn")])
def test_a_disk_that_would_cut_records_short_is_named(tmp_path: Path, free_mib: int, severity: str) -> None:
    host = make_host(tmp_path, free_bytes=lambda folder: free_mib << 20)
    only(bad(host), "disk", severity, f"Only {free_mib} MiB are free")


def test_results_that_cannot_be_written_are_unfit(tmp_path: Path) -> None:
    only(bad(make_host(tmp_path), results=Path("/proc/nothing/here")), "results", "unfit", "cannot be written")


def test_a_results_folder_that_does_not_exist_yet_is_judged_by_its_nearest_parent_and_not_made(tmp_path: Path) -> None:
    wanted = tmp_path / "not" / "yet"
    assert bad(make_host(tmp_path), results=wanted) == {}
    assert not wanted.parent.exists()


def test_a_busy_machine_is_warned_of(tmp_path: Path) -> None:
    only(bad(make_host(tmp_path, {"/proc/loadavg": "3.50 1 1 1/1 1"})), "load", "warn", "load is 3.50 on 4 cores")


def test_a_container_with_fewer_cores_than_it_sees_is_warned_of(tmp_path: Path) -> None:
    found = only(
        bad(make_host(tmp_path, {"/sys/fs/cgroup/cpu.max": "150000 100000"})), "cpu-quota", "warn", "use 1.5 cores"
    )
    assert "OMP_NUM_THREADS=1" in found.way_out
    assert bad(make_host(tmp_path, {"/sys/fs/cgroup/cpu.max": "max 100000"})) == {}


def test_this_machine_can_be_examined_and_nothing_raises() -> None:
    findings = diagnose("cpu")
    assert {"python", "torch", "gpu", "compiler", "variables", "asv", "results", "disk", "memory", "load"} <= {
        finding.name for finding in findings
    }


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (2, ["Other processes use the GPUs: GPU 0 by 2; timings beside them mean nothing."]),
        (0, ["Nobody else uses the GPUs."]),
        (UNKNOWN, []),
    ],
)
def test_other_users_of_a_gpu_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: int | str, said: list[str]
) -> None:
    sensors = SimpleNamespace(read=lambda: {"others": users})
    monkeypatch.setattr(gpu, "open_sensors", lambda address: sensors)
    monkeypatch.setattr(gpu, "list_gpus", lambda host: [{"pci": "0000:1b:00.0"}])
    host = make_host(tmp_path, torch=CUDA_TORCH)
    assert [finding.message for finding in gpu.check_users(Patient(host, host.torch(), "cuda", tmp_path))] == said
