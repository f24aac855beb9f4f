"""What compiled code was made by and for, so that no artefact is ever loaded on another machine's terms.

A cache in a shared home directory once served AVX-512 code to a node without it, and code of one thread count to
another.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from typing import Any

import torch


def toolchain() -> dict[str, Any]:
    """Everything outside model and settings that generated code depends on, as plain data.

    Paths and times are left out.
    """
    return {**_build(), "settings": _settings()}


@functools.cache
def _build() -> dict[str, Any]:
    """Facts that do not change within a process."""
    return {
        "torch": torch.__version__,
        "torch_source": _torch_key(),
        "triton": _triton_version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "compiler": compiler_version(os.environ.get("CXX") or "g++"),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "gpu": _gpu(),
    }


def _settings() -> dict[str, Any]:
    """Process-wide switches that change generated code."""
    return {
        "inductor": torch._inductor.config.get_hash().hex(),
        "functorch": torch._functorch.config.get_hash().hex(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "mkldnn": torch.backends.mkldnn.enabled,
    }


def _torch_key() -> str:
    """Inductor's own hash of its sources: two nightlies share a version string."""
    import torch._functorch.config
    import torch._inductor.codecache

    key = torch._inductor.codecache.torch_key()
    return key.hex() if isinstance(key, bytes) else str(key)


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def _gpu() -> dict[str, Any] | None:
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": properties.name,
        "arch": getattr(properties, "gcnArchName", None) or f"sm_{properties.major}{properties.minor}",
        "units": properties.multi_processor_count,
        "driver": _driver_version(),
    }


def _driver_version() -> str | None:
    """The kernel driver's version, where the system shows it without a tool."""
    for path in ("/sys/module/nvidia/version", "/sys/module/amdgpu/version", "/proc/driver/nvidia/version"):
        try:
            with open(path, encoding="utf-8") as file:
                return file.readline().strip()
        except OSError:
            continue
    return None


def compiler_version(compiler: str) -> str | None:
    found = shutil.which(compiler)
    if found is None:
        return None
    try:
        run = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.partition("\n")[0] or None
