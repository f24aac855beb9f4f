"""Tensors that a graph uses but its pool does not hold: weights, staging buffers, results of eager code.

A GPU graph goes on reading an address after its tensor is gone, and gives wrong tokens without an error. Here the
address is frozen with the recording, and the first replay asks whether anyone but graphs still holds the memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

#: How many references to each storage belong to graphs, over all graphs of the process.
_held_by_graphs: Counter[int] = Counter()


@dataclass(slots=True)
class _Held:
    address: int
    used_by: str  # operation and call site
    handles: list[torch.Tensor] = field(default_factory=list)


class OutsideTensors:
    """The outside tensors of one graph, held strongly, each geometry once."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._by_geometry: dict[Any, torch.Tensor] = {}

    def handle(self, tensor: torch.Tensor, storage: torch.UntypedStorage, used_by: str) -> torch.Tensor:
        """A tensor over the same memory that requires no gradient. Non-strided tensors are held and not checked."""
        if tensor.layout is not torch.strided:
            return tensor.detach()
        place = (storage._cdata, tensor.storage_offset(), tensor.size(), tensor.stride())
        key = (place, tensor.dtype, tensor.is_conj(), tensor.is_neg())
        known = self._by_geometry.get(key)
        if known is None:
            known = self._by_geometry[key] = tensor.detach()
            held = self._held.setdefault(storage._cdata, _Held(storage.data_ptr(), used_by))
            held.handles.append(known)
            _held_by_graphs[storage._cdata] += 1
        return known

    def check(self) -> None:
        """Raise `RuntimeError` for the first tensor that moved, or that only graphs keep alive."""
        for held in self._held.values():
            storage = held.handles[0].untyped_storage()
            what = f"an outside tensor {_describe(held.handles[0])} of {held.used_by}"
            if storage.data_ptr() != held.address:
                raise RuntimeError(f"{what} moved since the capture; record again, or copy into the recorded tensor")
            others = torch._C._storage_Use_Count(storage._cdata) - 1 - _held_by_graphs[storage._cdata]
            if others <= 0:
                raise RuntimeError(
                    f"{what} has been freed or replaced since the capture, and a GPU would read whatever lies there "
                    "now; keep the tensor, or allocate it in the pool"
                )

    def __del__(self) -> None:
        for cdata, held in self._held.items():
            _held_by_graphs[cdata] -= len(held.handles)
            if _held_by_graphs[cdata] <= 0:
                del _held_by_graphs[cdata]


def _describe(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


class Undo:
    """Bytes of outside memory as they were before the capture wrote them: a capture computes nothing on a GPU."""

    def __init__(self) -> None:
        self._saved: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def save(self, tensor: torch.Tensor) -> None:
        """Remember the span of memory between `tensor`'s first and last element, once."""
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            return
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
        offset, nbytes = tensor.storage_offset() * tensor.itemsize, span * tensor.itemsize
        key = (tensor.data_ptr(), nbytes)
        if key not in self._saved:
            view = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), offset, (nbytes,), (1,))
            self._saved[key] = (view, view.clone())

    def restore(self) -> None:
        """Latest first, so that overlapping spans end with the oldest bytes."""
        with torch._C._InferenceMode(True), torch._C._DisableTorchDispatch():
            for view, saved in reversed(self._saved.values()):
                view.copy_(saved)
        self._saved.clear()
