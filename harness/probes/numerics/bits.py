"""Equality by bits, because a tolerance that forgives rounding also forgives a stale row.

Cosine similarity of 0.99 let a whole stale row and zeroed logits through; `==` calls two equal NaNs different and +0
and -0 equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """Rows of two [rows, ...] tensors that differ, with the first of them looked at closely."""

    rows: tuple[int, ...]
    total_rows: int
    elements: int  # in the first differing row
    nan_elements: int  # of the second tensor in that row

    def __str__(self) -> str:
        return f"row {self.rows[0]}, {self.elements} elements by their bits"


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory read as integers."""
    return tensor.detach().contiguous().view(_INTEGER[tensor.element_size()])


def unequal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A bool tensor, true where the bits differ. Raises ValueError when shapes or dtypes differ."""
    if left.shape != right.shape or left.dtype != right.dtype:
        raise ValueError(
            f"cannot compare {tuple(left.shape)} {left.dtype} with {tuple(right.shape)} {right.dtype} bit for bit; "
            "both arms must return the same rows in the same dtype"
        )
    return as_bits(left) != as_bits(right)


def difference(left: torch.Tensor, right: torch.Tensor) -> Difference | None:
    """Where `right` departs from `left` row by row, or None."""
    mask = unequal(left, right).flatten(1)
    rows = mask.any(dim=1)
    if not bool(rows.any()):
        return None
    where = tuple(rows.nonzero().flatten().tolist())
    first = right[where[0]]
    nans = int(torch.isnan(first).sum()) if first.is_floating_point() else 0
    return Difference(where, mask.shape[0], int(mask[where[0]].sum()), nans)


def equal_share(left: torch.Tensor, right: torch.Tensor) -> float:
    """The share of elements with equal bits."""
    return 1.0 - float(unequal(left, right).float().mean())


def max_ulp(left: torch.Tensor, right: torch.Tensor) -> int:
    """The largest distance in units in the last place: how many representable numbers lie between two elements."""
    unequal(left, right)
    return int((_ordinal(left) - _ordinal(right)).abs().max())


def _ordinal(tensor: torch.Tensor) -> torch.Tensor:
    """Sign and magnitude as one ascending int64, so that neighbours in value are neighbours in number."""
    raw = as_bits(tensor).to(torch.int64)
    width = 8 * tensor.element_size()
    negative = raw < 0
    magnitude = raw & ((1 << (width - 1)) - 1)
    return torch.where(negative, -magnitude, magnitude)
