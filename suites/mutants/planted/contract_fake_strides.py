"""A fake that promises another layout than the operator returns: compiled code reads the wrong elements."""

from typing import Any

import torch

from atom_impl.model_ops.norm import RMSNorm
from atom_impl.utils.custom_register import direct_register_custom_op
from harness.mutants import Mutant, swap

plain = RMSNorm.forward


def by_columns(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


def install(fake: Any) -> None:
    direct_register_custom_op("mutant_columns", by_columns, [], fake_impl=fake)
    swap(RMSNorm, "forward", through_the_operator)


def through_the_operator(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aiter.mutant_columns(plain(self, x)) * 1.0


MUTANT = Mutant(
    kind="CONTRACT",
    variant="fake with other strides",
    changes="an operator returns columns and its fake promises rows",
    control_is="a fake that promises columns.",
    caught_by=("G3", "crashed in capture"),
    says="The operator, and the strides that it returned and promised.",
    plant=lambda: install(lambda x: torch.empty_like(x)),
    control=lambda: install(lambda x: x.new_empty(x.shape[::-1]).t()),
    level=3,
    mode="NONE",
    own_cache=True,
)
