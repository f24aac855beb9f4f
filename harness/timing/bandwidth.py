"""The memory bandwidth that this process reaches on this device, measured and not read from a data sheet.

A step at half the sheet's bandwidth looked improvable for weeks; the partition it ran in had half the channels.
"""

from __future__ import annotations

import time
from functools import cache

import torch

_MIB = 1 << 20
#: Bytes that are copied: more than a cache of the kind of device holds.
SIZES = {"cpu": 128 * _MIB, "cuda": 1024 * _MIB}
REPEATS = 5


@cache
def bandwidth_bytes_s(device: str) -> float:
    """Bytes a second, read and written, of the fastest of several large copies; measured once a process."""
    size = SIZES[device]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)  # the first touch pays for the pages
    return 2 * size / min(_copy_s(target, source, device) for _ in range(REPEATS))


def _copy_s(target: torch.Tensor, source: torch.Tensor, device: str) -> float:
    if device == "cuda":
        from harness.timing.gpu_spin import event_us

        return event_us(lambda: target.copy_(source)) / 1e6
    begun = time.perf_counter()
    target.copy_(source)
    return time.perf_counter() - begun
