"""A custom operator writes its output and does not say so: the compiler may run it too early, or never."""

from typing import Any

import torch

from atom_impl.model_ops.norm import RMSNorm
from atom_impl.utils.custom_register import direct_register_custom_op
from harness.mutants import Mutant, swap


def double_into(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(x, 2, out=out)


def install(declared: list[str]) -> None:
    direct_register_custom_op("mutant_double", double_into, declared, fake_impl=lambda x, out: None)
    swap(RMSNorm, "forward", through_the_operator)


def through_the_operator(self: Any, x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps) * self.weight
    out = torch.empty_like(normed)
    torch.ops.aiter.mutant_double(normed * 0.5, out)
    return out.to(x.dtype)


MUTANT = Mutant(
    kind="CONTRACT",
    variant="undeclared write",
    changes="the norm's operator writes an argument that its schema calls read-only",
    control_is="the same operator, declared.",
    caught_by=("G3",),
    says="That arm C alone is NaN, in which set, bucket and row, and that nobody wrote what it reads: CONTRACT.",
    plant=lambda: install([]),
    control=lambda: install(["out"]),
    level=3,
    mode="NONE",
    own_cache=True,
)
