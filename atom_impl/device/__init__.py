"""Devices that record graphs: `cuda` (CUDA and HIP, one API in torch) and the CPU's software graph."""

from __future__ import annotations

import os
from functools import cache

import torch

from atom_impl.device.base import CaptureError, Device, Graph, PoolHandle

__all__ = ["CaptureError", "Device", "Graph", "PoolHandle", "get_device"]


#: Set to 1, every segment runs eagerly through the real replay path: a fault that goes away is a kernel's or a graph's,
#: one that stays is bookkeeping. See `device/debug.py`.
DEBUG_REPLAY = "ATOM_DEBUG_REPLAY"


def get_device(name: str | None = None) -> Device:
    """The process's `Device` for "cuda" or "cpu"; by default the GPU when torch sees one."""
    return _device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


@cache
def _device(name: str) -> Device:
    device = _plain_device(name)
    if os.environ.get(DEBUG_REPLAY) != "1":
        return device
    from atom_impl.device.debug import DebugDevice

    return DebugDevice(device)


def _plain_device(name: str) -> Device:
    if name == "cpu":
        from atom_impl.device.software import SoftwareDevice

        return SoftwareDevice()
    if name == "cuda":
        from atom_impl.device.cuda import CudaDevice

        return CudaDevice()
    raise ValueError(f"no device {name!r}; there are 'cuda' (NVIDIA and AMD GPUs) and 'cpu'")
