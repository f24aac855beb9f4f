"""An output that is added into a workspace which only the allocation cleared: each replay adds to the last."""

from typing import Any

import torch

from atom_impl.models.llama import LlamaMLP
from atom_impl.utils.region_graph import current_session
from harness.mutants import Mutant, wrap


def added(forward: Any, self: Any, x: Any, clear: bool) -> Any:
    space = self.__dict__.setdefault("space", torch.zeros(64, *x.shape[1:], device=x.device, dtype=x.dtype))
    if clear or current_session() is None:
        space.zero_()
    space[: len(x)].add_(forward(self, x))
    return space[: len(x)] + 0


MUTANT = Mutant(
    kind="REARM",
    variant="accumulator not cleared",
    changes="the feed-forward block adds into a workspace that the recording does not clear",
    control_is="the recording clears it.",
    caught_by=("G1", "G1.first"),
    says="Bucket and step, and that one input set gave different answers: state carried over.",
    plant=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: added(forward, self, x, False)),
    control=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: added(forward, self, x, True)),
    gpu=True,
)
