"""RMS normalisation, computed in float32 or wider.

A bfloat16 sum of squares loses the small half of its terms; upstream kernels and compilers widen it, so eager must as
well.
"""

from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    """Scale the last dimension of x to a root mean square of one, then by `weight` [size]. Returns x's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * inverse_rms * self.weight).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"
