"""Machines that a test can make up: a folder for `/`, and answers in place of commands, packages and torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.host import Host, Outcome, TorchFacts

CPU_TORCH = TorchFacts(version="2.13.0+cpu", cuda="none", hip="none", folder=Path("torch"))
MI300X = ("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 196592)
H200 = ("NVIDIA H200", "sm_90", 143771)
ROCM_TORCH = replace(CPU_TORCH, version="2.11.0+rocm7.2", hip="7.2.53211-364a905", rocm="7.2.1", gpus=(MI300X,))
CUDA_TORCH = replace(CPU_TORCH, version="2.11.0+cu130", cuda="13.0", gpus=(H200,))

LAPTOP_FILES = {
    "/proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   12582912 kB\n",
    "/proc/loadavg": "0.10 0.20 0.30 1/200 4711\n",
    "/proc/cpuinfo": "model name\t: Some CPU (R) 3000\nflags\t\t: fpu avx512f amx_tile sse\nmicrocode\t: 0x1\n",
    "/etc/os-release": 'NAME=x\nPRETTY_NAME="Some Linux 12"\n',
    "/sys/devices/system/node/node0/cpulist": "0-3\n",
    "/proc/sys/kernel/numa_balancing": "0\n",
}
INSTALLED = {"asv": "0.6.6", "asv_runner": "0.3.2", "transformers": "5.0.0"}


def answer(command: Sequence[str]) -> Outcome | None:
    """A machine on which every command succeeds and says little."""
    return Outcome(0, "g++ (Some Linux) 12.2.0\nmore\n" if "--version" in command else "")


def make_host(
    root: Path, files: Mapping[str, str] | None = None, torch: TorchFacts = CPU_TORCH, **changes: Any
) -> Host:
    """A healthy laptop with four cores; `files` come on top, and any part of `Host` can be changed."""
    for name, text in {**LAPTOP_FILES, **(files or {})}.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    parts: dict[str, Any] = {
        "root": root,
        "environ": {"HOME": "/home/somebody"},
        "run": answer,
        "version": INSTALLED.get,
        "package_folder": lambda name: None,
        "torch": lambda: torch,
        "which": lambda name: f"/usr/bin/{name}" if name == "g++" else None,
        "free_bytes": lambda folder: 100 << 30,
        "total_bytes": lambda folder: 100 << 30,
        "may_use": lambda path: True,
        "python": (3, 11, 7),
        "cores": 4,
    }
    return Host(**{**parts, **changes})
