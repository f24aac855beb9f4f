"""`cudagraph_copy_inputs`: inputs copied to fixed addresses before every call.

Upstream took the first batch for the largest, and a later, larger one failed inside `copy_` with a message about sizes.
Here the buffers hold what the configuration allows, and a larger batch is an error that names the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from atom_impl.utils.compilation_counter import compilation_counter


class StaticInputs:
    """A compiled callable behind static buffers for its inputs of dynamic size.

    `dynamic_dims` gives the dimensions that vary for each such input's position. Buffers are made on the first call,
    `max_rows` long in those dimensions or as long as that call where it is longer, and never move.
    """

    def __init__(
        self, compiled: Callable[..., Any], dynamic_dims: Mapping[int, Sequence[int]], max_rows: int = 0
    ) -> None:
        self._compiled = compiled
        self._dims = {index: list(dims) for index, dims in dynamic_dims.items() if dims}
        self._max_rows = max_rows
        self.input_buffers: dict[int, torch.Tensor] = {}

    def __call__(self, *args: Any) -> Any:
        staged = list(args)
        for index in self._dims:
            staged[index] = self._copied(index, args[index])
        return self._compiled(*staged)

    def _copied(self, index: int, source: torch.Tensor) -> torch.Tensor:
        """`source` at the buffer's address, laid out as it was: code traced for one layout may not get another."""
        buffer = self.input_buffers.get(index)
        if buffer is None:
            buffer = self.input_buffers[index] = self._buffer_for(index, source)
        if _extent(source.shape, source.stride()) > buffer.numel():
            raise ValueError(
                f"input {index} of shape {tuple(source.shape)} is larger than the buffer of cudagraph_copy_inputs, "
                f"which has {buffer.numel()} elements; run the largest batch first, or raise max_num_batched_tokens"
            )
        view = buffer.as_strided(source.shape, source.stride())
        view.copy_(source)
        compilation_counter.num_input_copies += 1
        compilation_counter.input_copy_bytes += source.nbytes
        return view

    def _buffer_for(self, index: int, source: torch.Tensor) -> torch.Tensor:
        shape = list(source.shape)
        for dim in self._dims[index]:
            shape[dim] = max(shape[dim], self._max_rows)
        elements = max(math.prod(shape), _extent(shape, source.stride()))
        return torch.zeros(elements, dtype=source.dtype, device=source.device)


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last, holes included."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
