"""A kernel that the recording does not see: it runs while the graph is recorded, and never again."""

from typing import Any

from atom_impl.model_ops.norm import RMSNorm
from harness.mutants import Mutant, wrap


def unseen(forward: Any, self: Any, x: Any) -> Any:
    result = forward(self, x)
    memory = result.numpy()
    memory *= 2
    return result


def seen(forward: Any, self: Any, x: Any) -> Any:
    return forward(self, x).mul_(2)


MUTANT = Mutant(
    kind="FROZEN",
    variant="kernel outside the recording",
    changes="the norm's result is doubled by a library that is no operator of torch",
    control_is="doubled by an operator.",
    caught_by=("G1", "G1.first", "crashed in capture"),
    says="The call that a recording cannot see, and its line; or the bucket and step where the replay alone differs.",
    plant=lambda: wrap(RMSNorm, "forward", unseen),
    control=lambda: wrap(RMSNorm, "forward", seen),
    cpu_only="a GPU's memory is not the host's to write",
)
