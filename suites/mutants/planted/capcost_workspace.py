"""A new workspace for every graph, held for ever: the pool grows by it with each bucket."""

from typing import Any

import torch

from atom_impl.models.llama import LlamaMLP
from atom_impl.utils.region_graph import current_session
from harness.mutants import Mutant, wrap

held: list[torch.Tensor] = []


def each_time(forward: Any, self: Any, x: Any) -> Any:
    if current_session() is not None:
        held.append(x.new_empty(1 << 20))
    return forward(self, x)


def once(forward: Any, self: Any, x: Any) -> Any:
    return each_time(forward, self, x) if not held else forward(self, x)


MUTANT = Mutant(
    kind="CAPCOST",
    variant="workspace for every graph",
    changes="4 MiB are allocated in the pool while each bucket is recorded, and kept",
    control_is="the first capture's alone.",
    caught_by=("closed.pool",),
    says="The pool's size beside its largest bucket's, the factor allowed, and LIFETIME or CAPCOST.",
    plant=lambda: wrap(LlamaMLP, "forward", each_time),
    control=lambda: wrap(LlamaMLP, "forward", once),
    quick=True,
)
