"""Devices that record graphs: `cuda` (CUDA and HIP, one API in torch) and the CPU's software graph."""

from __future__ import annotations

import os
from functools import cache

import torch

from atom_impl.device.base import CaptureError, Device, Graph, PoolHandle

__all__ = ["CaptureError", "Device", "Graph", "PoolHandle", "get_device", "is_debug", "set_debug_replay"]


#: Set to 1, every segment runs eagerly through the real replay path: a fault that goes away is a kernel's or a graph's,
#: one that stays is bookkeeping. See `device/debug.py`.
DEBUG_REPLAY = "ATOM_DEBUG_REPLAY"


def get_device(name: str | None = None) -> Device:
    """The process's `Device` for "cuda" or "cpu"; by default the GPU when torch sees one."""
    return _device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def set_debug_replay(enabled: bool) -> None:
    """Make devices that are asked for from here on debug devices, or no longer. Models keep the device they have."""
    if (os.environ.get(DEBUG_REPLAY) == "1") != enabled:
        os.environ[DEBUG_REPLAY] = "1" if enabled else "0"
        _device.cache_clear()


def is_debug(device: Device) -> bool:
    """Whether segments of `device` run eagerly at a replay."""
    from atom_impl.device.debug import DebugDevice

    return isinstance(device, DebugDevice)


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
