"""Devices that record graphs: `cuda` (CUDA and HIP, one API in torch) and the CPU's software graph."""

from __future__ import annotations

from functools import cache

import torch

from atom_impl.device.base import CaptureError, Device, Graph, PoolHandle

__all__ = ["CaptureError", "Device", "Graph", "PoolHandle", "get_device"]


@cache
def get_device(name: str | None = None) -> Device:
    """The process's `Device` for "cuda" or "cpu"; by default the GPU when torch sees one."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        from atom_impl.device.software import SoftwareDevice

        return SoftwareDevice()
    if name == "cuda":
        from atom_impl.device.cuda import CudaDevice

        return CudaDevice()
    raise ValueError(f"no device {name!r}; there are 'cuda' (NVIDIA and AMD GPUs) and 'cpu'")
