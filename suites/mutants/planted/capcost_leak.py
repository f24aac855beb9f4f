"""Each replay leaves 64 KiB behind."""

from typing import Any

import torch

from atom_impl.device import get_device
from atom_impl.graphs.recording import Recording
from harness.mutants import Mutant, wrap

held: list[torch.Tensor] = []


def leaking(replay: Any, self: Any, args: Any = (), kwargs: Any = None) -> Any:
    held.append(torch.empty(1 << 14, device=get_device().torch_device))
    return replay(self, args, kwargs)


def released(replay: Any, self: Any, args: Any = (), kwargs: Any = None) -> Any:
    result = leaking(replay, self, args, kwargs)
    held.clear()
    return result


MUTANT = Mutant(
    kind="CAPCOST",
    variant="leak in every replay",
    changes="a tensor of 64 KiB is kept each time",
    control_is="kept until the step is over.",
    caught_by=("memory.steps",),
    says="The size, the bytes that each step leaves, on host or device, and the shape of the tensors that are kept.",
    plant=lambda: wrap(Recording, "replay", leaking),
    control=lambda: wrap(Recording, "replay", released),
    gpu=True,
)
