"""A helper is compiled for each batch size that it meets: the warm-up covers the buckets, and service meets others."""

from typing import Any

import torch

from atom_impl.models.llama import LlamaMLP
from atom_impl.utils.region_graph import current_session
from harness.mutants import Mutant, wrap


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape)


def through(forward: Any, self: Any, x: Any, by_size: bool) -> Any:
    if current_session() is None:
        compiled((x if by_size else x[:1]).float())  # float: alike in the float64 arm
    return forward(self, x)


compiled = torch.compile(helper, backend="eager", dynamic=False)
MUTANT = Mutant(
    kind="SPECIALISE",
    variant="size first seen in service",
    changes="a compiled helper holds one batch size, and is compiled again for the next",
    control_is="the helper is given the first row alone.",
    caught_by=("G1.artefact", "closed.compiles_after_capture"),
    says="How many graphs the compiler had seen at the capture's end and after the last replay.",
    plant=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: through(forward, self, x, True)),
    control=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: through(forward, self, x, False)),
)
