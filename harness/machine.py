"""The machine's fingerprint: every fact that has explained a figure which did not repeat.

A node that came back from a reboot in another partition mode looks like a regression of the engine. What is not written
beside a figure cannot be asked later, so a fact that nobody can say is "unknown" and never left out.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.gpus import list_gpus
from harness.host import UNKNOWN, Host, TorchFacts
from harness.revision import revision as revision  # part of this module's face: machine and code go into one record

#: Only these are recorded: an environment holds credentials, and most of it changes no figure.
VARIABLE_PREFIXES = ("HIP_", "HSA_", "ROCR_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "OMP_")
_CONFIDENTIAL = re.compile(r"TOKEN|PASS|SECRET|KEY|CREDENTIAL|AUTH|USER|URL", re.IGNORECASE)
_CPU_FLAGS = re.compile(r"amx|avx|vnni|bf16|fp16|^sve|^asimd", re.IGNORECASE)


def fingerprint(host: Host | None = None) -> dict[str, Any]:
    """All facts as plain data: cpu, memory_mib, numa, os, gpus, software, environment, and `now` for passing ones."""
    host = host or Host()
    torch, memory_mib = host.torch(), host.memory_mib()
    return {
        "cpu": _cpu(host),
        "memory_mib": memory_mib["total"],
        "numa": _numa(host),
        "os": _os(host),
        "gpus": list_gpus(host),
        "visible_gpus": len(torch.gpus),
        "device_nodes": host.gpu_nodes(),
        "software": _software(host, torch),
        "environment": recorded_variables(host.environ),
        "now": {"load_1min": host.read("/proc/loadavg").split()[0], "memory_available_mib": memory_mib["available"]},
    }


def series_key(facts: Mapping[str, Any], device: str) -> str:
    """A folder-safe name shared by the machines whose timings may be compared: the same hardware, set alike.

    Software is left out on purpose. A new torch, ROCm or driver is what a comparison is meant to judge, not to excuse.
    """
    cpu = facts["cpu"]
    deciding = [cpu["model"], cpu["usable_cores"], cpu["flags"]]
    title = f"cpu-{cpu['model']}-{cpu['usable_cores']}-cores"
    if device.startswith("cuda"):
        # Memory is left out: NVML and torch count it differently, so that installing one would rename the series.
        settings = ("name", "compute_partition", "memory_partition", "power_cap_w")
        gpus = [[gpu["arch"].split(":")[0], *(gpu[name] for name in settings)] for gpu in facts["gpus"]]
        deciding += [facts["visible_gpus"], gpus]
        first = facts["gpus"][0] if facts["gpus"] else dict.fromkeys(settings, UNKNOWN)
        title = f"{facts['visible_gpus']}x-{first['name']}-{first['compute_partition']}-{first['power_cap_w']}w"
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", title.lower())).strip("-")
    return f"{name}-{hashlib.sha256(repr(deciding).encode()).hexdigest()[:8]}"


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with `VARIABLE_PREFIXES`. What may be confidential is hidden, and the home folder reads `~`."""
    home = environ.get("HOME", "").rstrip("/")
    chosen = {name: value for name, value in sorted(environ.items()) if name.startswith(VARIABLE_PREFIXES)}
    return {
        name: "(hidden)" if _CONFIDENTIAL.search(name) else value.replace(home, "~") if home else value
        for name, value in chosen.items()
    }


def rocm_version(host: Host, torch: TorchFacts) -> str:
    """`major.minor.patch`, from torch, the ROCm wheels or the installation. HIP's third part is a build number."""
    if torch.rocm != UNKNOWN:
        return torch.rocm
    wheel = host.version("rocm-sdk-core") or host.version("rocm")
    return wheel or host.read(f"{_rocm_folder(host)}/.info/version").split("-")[0]


def _rocm_folder(host: Host) -> str:
    return host.environ.get("ROCM_PATH") or host.environ.get("HIP_PATH") or "/opt/rocm"


def _cpu(host: Host) -> dict[str, Any]:
    fields: dict[str, str] = {}
    for line in host.read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    flags = (fields.get("flags") or fields.get("features") or "").split()
    return {
        "model": fields.get("model name") or fields.get("cpu part") or platform.processor() or UNKNOWN,
        "logical_cores": os.cpu_count() or UNKNOWN,
        "usable_cores": host.cores,
        "quota_cores": cpu_quota(host),
        "flags": sorted(flag for flag in flags if _CPU_FLAGS.search(flag)),
        "governor": host.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "microcode": fields.get("microcode") or UNKNOWN,
    }


def cpu_quota(host: Host) -> float | str:
    """Cores' worth of time that the container may use; "unlimited" without a quota."""
    parts = host.read("/sys/fs/cgroup/cpu.max").split()
    if len(parts) == 2 and all(part.isdigit() for part in parts):
        return int(parts[0]) / int(parts[1])
    return "unlimited" if parts[0] == "max" else UNKNOWN


def _numa(host: Host) -> dict[str, Any]:
    nodes = host.glob("/sys/devices/system/node/node[0-9]*")
    return {
        "nodes": len(nodes) or UNKNOWN,
        "cpus": {path.rsplit("/", 1)[1]: host.read(f"{path}/cpulist") for path in nodes},
        "balancing": host.read("/proc/sys/kernel/numa_balancing"),
    }


def _os(host: Host) -> dict[str, str]:
    release = dict(line.split("=", 1) for line in host.read("/etc/os-release").splitlines() if "=" in line)
    image = re.search(r'^imageid="?([^"\n]+)', host.read("/run/.containerenv"), re.MULTILINE)
    inside = host.path("/.dockerenv").exists() or host.path("/run/.containerenv").exists()
    return {
        "name": release.get("PRETTY_NAME", UNKNOWN).strip('"'),
        "kernel": platform.release() or UNKNOWN,
        "architecture": platform.machine() or UNKNOWN,
        "container": "yes" if inside else "no sign of one",
        "image_digest": image[1] if image else UNKNOWN,
    }


def _software(host: Host, torch: TorchFacts) -> dict[str, str]:
    compiler = host.compiler()
    return {
        "python": ".".join(map(str, host.python)),
        "torch": torch.version,
        "torch_cuda": torch.cuda,
        "torch_hip": torch.hip,
        "rocm": rocm_version(host, torch),
        "hipblaslt": _hipblaslt(host, torch),
        "triton": _first_version(host, "triton", "pytorch-triton-rocm", "triton-rocm", "pytorch-triton"),
        "aiter": _first_version(host, "amd-aiter"),  # the package called aiter on the index is no relative of it
        "transformers": _first_version(host, "transformers"),
        "numpy": _first_version(host, "numpy"),
        "compiler": host.output(compiler, "--version").splitlines()[0] if compiler else UNKNOWN,
    }


def _first_version(host: Host, *distributions: str) -> str:
    return next((version for name in distributions if (version := host.version(name))), UNKNOWN)


def _hipblaslt(host: Host, torch: TorchFacts) -> str:
    """From the installed header, else from the library's own file name: no package carries its version."""
    header = host.read(f"{_rocm_folder(host)}/include/hipblaslt/hipblaslt-version.h")
    parts = dict(re.findall(r"VERSION_(MAJOR|MINOR|PATCH)\s+(\d+)", header))
    if len(parts) == 3:
        return ".".join(parts[name] for name in ("MAJOR", "MINOR", "PATCH"))
    folders = [Path(host.path(_rocm_folder(host))) / "lib", *([torch.folder / "lib"] if torch.folder else [])]
    names = [path.name for folder in folders for path in folder.glob("libhipblaslt.so.*")]
    return max(names, key=len).removeprefix("libhipblaslt.so.") if names else UNKNOWN
