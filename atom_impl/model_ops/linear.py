"""Linear layers without bias: three projections of one input are one matrix, and so one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


class Linear(nn.Module):
    """y = x W^T with `weight` [out, in]."""

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_out, size_in), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} -> {self.weight.shape[0]}"


class MergedLinear(Linear):
    """Several projections of one input, stacked along their outputs; returns one tensor (a view) for each."""

    def __init__(self, size_in: int, sizes_out: Sequence[int]) -> None:
        super().__init__(size_in, sum(sizes_out))
        self.sizes_out = tuple(sizes_out)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        return F.linear(x, self.weight).split(self.sizes_out, dim=-1)
