"""The inputs that a model is traced with: shaped like the first call's, never the caller's own.

torch takes sizes 0 and 1 for constants, so a model first called with one row was compiled for one row; and a traced
tensor keeps its dynamic mark, which later releases of torch refuse. The trace therefore runs on empty stand-ins of a
fixed number of rows: what was traced does not depend on which batch came first, and the caller's tensors stay as they
were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

#: Rows of the stand-ins. A prime, so that no model dimension equals it and a size taken for another shows.
TRACE_ROWS = 251


def stand_ins(arguments: Mapping[str, Any], dynamic_dims: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """`arguments` with each tensor that has dynamic dimensions replaced by an empty one whose dimensions are marked.

    When all dynamic sizes of the call agree, they become `TRACE_ROWS`. Otherwise they are kept, for they may depend
    on each other, and a size below 2 raises ValueError: call with a larger batch first.
    """
    sizes = {
        tensor.shape[dim]
        for name, dims in dynamic_dims.items()
        for tensor, dim in _tensors(name, arguments[name], dims)
    }
    rows = TRACE_ROWS if len(sizes) == 1 else None
    if rows is None and sizes and min(sizes) < 2:
        raise ValueError(
            f"the first call has dynamic sizes {sorted(sizes)}: sizes that differ are traced as they are, and torch "
            "takes 0 and 1 for constants; make the first call with sizes of at least 2"
        )
    return {
        name: _stand_in(value, dynamic_dims[name], rows) if name in dynamic_dims else value
        for name, value in arguments.items()
    }


def normalised_dims(name: str, tensor: torch.Tensor, dims: Sequence[int]) -> list[int]:
    """`dims` of `tensor` counted from the front. Raises ValueError for one that the tensor has not."""
    for dim in dims:
        if not -tensor.dim() <= dim < tensor.dim():
            raise ValueError(f"dynamic dimension {dim} of argument {name}: the tensor has {tensor.dim()} dimensions")
    return [dim % tensor.dim() for dim in dims]


def _tensors(name: str, value: Any, dims: Sequence[int]) -> list[tuple[torch.Tensor, int]]:
    if value is None:
        return []
    if isinstance(value, torch.Tensor):
        return [(value, dim) for dim in normalised_dims(name, value, dims)]
    held = getattr(value, "tensors", None)
    if isinstance(held, dict):
        return [(tensor, 0) for tensor in held.values() if isinstance(tensor, torch.Tensor)]
    raise ValueError(f"Unsupported dynamic dimensions {list(dims)} for argument {name} with type {type(value)}")


def _stand_in(value: Any, dims: Sequence[int], rows: int | None) -> Any:
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return _empty_like(value, [dim % value.dim() for dim in dims], rows)
    return type(value)({key: _empty_like(tensor, [0], rows) for key, tensor in value.tensors.items()})


def _empty_like(tensor: torch.Tensor, dims: Sequence[int], rows: int | None) -> torch.Tensor:
    """An empty tensor of the same kind. A traced function reads no data, so none is copied."""
    shape = [rows if rows is not None and dim in dims else size for dim, size in enumerate(tensor.shape)]
    with torch.inference_mode(tensor.is_inference()):
        empty = torch.empty_strided(shape, _strides(tensor, shape), dtype=tensor.dtype, device=tensor.device)
        empty.requires_grad_(tensor.requires_grad)
    for dim in dims:
        torch._dynamo.mark_dynamic(empty, dim)
    return empty


def same_layout(tensor: torch.Tensor, traced: torch.Tensor) -> bool:
    """Whether `tensor` is laid out as `traced` was: contiguous, by the same fixed strides, or dense in the same
    order.
    """
    if traced.is_contiguous():
        return tensor.is_contiguous()
    strides = zip(tensor.shape, tensor.stride(), traced.stride(), strict=True)
    if all(own == other for size, own, other in strides if size > 1):
        return True
    order = _order(traced)
    was_dense = list(traced.stride()) == _dense(traced.shape, order)
    return was_dense and list(tensor.stride()) == _dense(tensor.shape, order)


def _strides(tensor: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """Strides for `shape` in the tensor's order of dimensions, or its own where its layout has holes or overlaps."""
    order = list(range(tensor.dim())) if tensor.is_contiguous() else _order(tensor)
    if tensor.is_contiguous() or list(tensor.stride()) == _dense(tensor.shape, order):
        return _dense(shape, order)
    return list(tensor.stride())


def _order(tensor: torch.Tensor) -> list[int]:
    """Dimensions from the outermost in memory to the innermost."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda dim: -strides[dim])


def _dense(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for position, dim in enumerate(order):
        strides[dim] = math.prod(shape[inner] for inner in order[position + 1 :])
    return strides
