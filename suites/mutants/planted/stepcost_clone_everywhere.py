"""One clone in every layer in every arm: all arms agree, and all are slower."""

from typing import Any

from atom_impl.models.llama import LlamaMLP
from harness.mutants import Mutant, wrap


def cloned(forward: Any, self: Any, x: Any) -> Any:
    return forward(self, x.clone())


def detached(forward: Any, self: Any, x: Any) -> Any:
    return forward(self, x.detach())


MUTANT = Mutant(
    kind="STEPCOST",
    variant="clone in every arm",
    changes="the feed-forward block clones its input always",
    control_is="another view of the same memory.",
    caught_by=("audit.copies",),
    says="The number of clones that keep their source's layout, and the line that makes them.",
    plant=lambda: wrap(LlamaMLP, "forward", cloned),
    control=lambda: wrap(LlamaMLP, "forward", detached),
    mode="TR_HYBRID",
)
