"""Rotary position embedding: angles from positions in every forward, never from a table.

A cos/sin table is indexed by position, and a pad row's position may be anything: an index past the table is a crash
on the CPU and a device assert in the middle of a replay on a GPU. Angles computed from positions are defined for all
of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    """Angles for the rotate-half form that Llama checkpoints use. `scaling` is the checkpoint's `rope_scaling`, if
    any.
    """

    inv_freq: torch.Tensor

    def __init__(self, head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.register_buffer("inv_freq", inverse_frequencies(head_dim, theta, scaling).to(dtype), persistent=False)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of `positions` [rows]: two of [rows, 1, head_dim / 2] in float32 or wider."""
        angles = positions.to(self.inv_freq.dtype)[:, None, None] * self.inv_freq
        return angles.cos(), angles.sin()


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate `x` [rows, heads, head dim] by its row's angles; returns x's dtype."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def inverse_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> torch.Tensor:
    """[head_dim / 2] float64 on the CPU. Raises ValueError for a scaling that is neither `default`, `linear` nor
    `llama3`.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
    frequencies = theta**-exponent
    kind = "default" if not scaling else scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return frequencies
    assert scaling is not None
    if kind == "linear":
        return frequencies / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(frequencies, scaling)
    raise ValueError(f"rope_scaling of type {kind!r} is not known; there are default, linear and llama3")


def _llama3(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Llama 3.1's rule: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1 - kept) / factor)
