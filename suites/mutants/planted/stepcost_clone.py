"""One clone in every layer that only the recording makes: a millisecond a step that no ledger shows."""

from typing import Any

from atom_impl.models.llama import LlamaMLP
from atom_impl.utils.region_graph import current_session
from harness.mutants import Mutant, wrap


def while_recording(forward: Any, self: Any, x: Any) -> Any:
    return forward(self, x if current_session() is None else x.clone())


def as_it_is(forward: Any, self: Any, x: Any) -> Any:
    return forward(self, x.contiguous())


MUTANT = Mutant(
    kind="STEPCOST",
    variant="clone in the recording",
    changes="the feed-forward block clones its input while it is recorded",
    control_is="contiguous() on what is contiguous, which copies nothing.",
    caught_by=("audit.copies",),
    says="The bucket, the number of copies, their bytes, and the line that makes them.",
    plant=lambda: wrap(LlamaMLP, "forward", while_recording),
    control=lambda: wrap(LlamaMLP, "forward", as_it_is),
    quick=True,
    gpu=True,
)
