"""Weights are loaded again after the first replays, into new memory: eager sees them, the recording does not."""

from itertools import count
from typing import Any

from torch import nn

from atom_impl.graphs.recording import Recording
from harness.mutants import Mutant, wrap

replays = count(1)


def reload(replay: Any, self: Any, args: Any = (), kwargs: Any = None) -> Any:
    result = replay(self, args, kwargs)
    if next(replays) == 6:
        model = self.module().model
        model.norm.weight = nn.Parameter(model.norm.weight * 1.25, requires_grad=False)
    return result


def reload_in_place(replay: Any, self: Any, args: Any = (), kwargs: Any = None) -> Any:
    result = replay(self, args, kwargs)
    if next(replays) == 6:
        weight = self.module().model.norm.weight
        weight.copy_(weight + 0)
    return result


MUTANT = Mutant(
    kind="MOVED",
    variant="weights reloaded after replays",
    changes="the final norm gets new weights in new memory once every bucket has been replayed",
    control_is="the same weights are written in place.",
    caught_by=("G1", "crashed in replay"),
    says="The step before which every replay is right and from which on every one is wrong: replaced then, MOVED.",
    plant=lambda: wrap(Recording, "replay", reload),
    control=lambda: wrap(Recording, "replay", reload_in_place),
    gpu=True,
)
