"""Marking tensors that stand for host memory.

On a CPU, host and device tensors look alike, so a legal `.item()` on host metadata and an illegal read of device data
cannot be told apart. Staging says which is which.
"""

from __future__ import annotations

from typing import Any

import torch

from atom_impl.device.software.operators import tensors_in

_MARK = "_stands_for_host_memory"
_STAGED, _MADE = "staged", "made in a capture"


def host(tensor: torch.Tensor) -> torch.Tensor:
    """Mark `tensor`'s storage (and so every view of it) as host memory; returns `tensor`.

    A capture may read it with `.item()`, `.tolist()` and the like, computes on it at once instead of recording, and may
    record copies from and to it. Any other operation that mixes it with device tensors raises, as on a GPU, except for
    0-dimensional tensors, which are passed by value.
    """
    setattr(tensor.untyped_storage(), _MARK, _STAGED)
    return tensor


def is_host(storage: torch.UntypedStorage) -> bool:
    """Whether this storage stands for host memory."""
    return getattr(storage, _MARK, None) is not None


def is_staged(storage: torch.UntypedStorage) -> bool:
    """Whether `host` marked this storage, so that a recorded copy may read it at every replay."""
    return getattr(storage, _MARK, None) == _STAGED


def mark_made_on_host(result: Any) -> Any:
    """Mark the tensors that host work in a capture returned; staged ones stay staged."""
    for tensor in tensors_in(result):
        if tensor.layout is torch.strided and not is_host(tensor.untyped_storage()):
            setattr(tensor.untyped_storage(), _MARK, _MADE)
    return result
