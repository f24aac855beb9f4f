"""An arrival counter that is zeroed where it is allocated, and that the kernel leaves at one: right once."""

from typing import Any

import torch

from atom_impl.models.llama import LlamaMLP
from atom_impl.utils.region_graph import current_session
from harness.mutants import Mutant, wrap


def counted(forward: Any, self: Any, x: Any, restore: bool) -> Any:
    counter = self.__dict__.setdefault("arrivals", torch.zeros(1, device=x.device, dtype=x.dtype))
    if current_session() is None and not restore:
        counter.zero_()
    counter.add_(1)
    result = forward(self, x) * (2 - counter)
    if restore:
        counter.zero_()
    return result


MUTANT = Mutant(
    kind="REARM",
    variant="arrival counter",
    changes="a split reduction's counter is zeroed on the host's way only",
    control_is="the kernel restores the counter itself.",
    caught_by=("G1", "G1.first"),
    says="Bucket and step, and that one input set gave different answers: state carried over.",
    plant=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: counted(forward, self, x, False)),
    control=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: counted(forward, self, x, True)),
    quick=True,
    gpu=True,
)
