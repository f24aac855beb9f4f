"""Boolean indexing: the shape of the result depends on device data."""

from typing import Any

import torch

from atom_impl.model_ops.norm import RMSNorm
from harness.mutants import Mutant, wrap


def selected(forward: Any, self: Any, x: Any) -> Any:
    return forward(self, x[x[:, :1].isfinite().flatten() | True]) if x.dim() == 2 else forward(self, x)


def masked(forward: Any, self: Any, x: Any) -> Any:
    return forward(self, torch.where(x.isfinite() | True, x, 0))


MUTANT = Mutant(
    kind="CAPTURE",
    variant="boolean indexing",
    changes="the norm selects its rows by a mask",
    control_is="the same mask through where().",
    caught_by=("crashed in capture",),
    says="The operation, its file and line, and the ways out.",
    plant=lambda: wrap(RMSNorm, "forward", selected),
    control=lambda: wrap(RMSNorm, "forward", masked),
    gpu=True,
)
