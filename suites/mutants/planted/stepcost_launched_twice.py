"""The first graph of a recording is launched twice: the same bits for more time, and no copy that shows it."""

from typing import Any

from atom_impl.graphs.recording import Recording
from harness.mutants import Mutant, wrap


def twice(accept: Any, self: Any, args: Any, kwargs: Any, record: Any) -> None:
    accept(self, args, kwargs, record)
    self.graphs()[0].replay()


def listed(accept: Any, self: Any, args: Any, kwargs: Any, record: Any) -> None:
    accept(self, args, kwargs, record)
    self.graphs()[0].pool()


MUTANT = Mutant(
    kind="STEPCOST",
    variant="graph launched twice",
    changes="a replay launches its first graph once more, and claims one launch",
    control_is="the same graph is asked for its pool.",
    caught_by=("audit.launches",),
    says="The bucket, how many graphs were launched and how many segments were claimed.",
    plant=lambda: wrap(Recording, "_accept", twice),
    control=lambda: wrap(Recording, "_accept", listed),
    gpu=True,
)
