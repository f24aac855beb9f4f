"""Each replay leaves 64 KiB behind."""

from typing import Any

import torch

from atom_impl.graphs.recording import Recording
from harness.mutants import Mutant, wrap

held: list[torch.Tensor] = []


def leaking(replay: Any, self: Any, args: Any = (), kwargs: Any = None) -> Any:
    held.append(torch.empty(1 << 14))
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
    caught_by=(),
    says="Nothing yet.",
    plant=lambda: wrap(Recording, "replay", leaking),
    control=lambda: wrap(Recording, "replay", released),
    survives="no probe holds the machine's free memory after many replays against that before them",
)
