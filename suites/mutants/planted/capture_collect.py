"""Garbage is collected in the middle of a capture: a finaliser that frees a module or an event ends it."""

import gc
from typing import Any

from atom_impl.model_ops.norm import RMSNorm
from atom_impl.utils.region_graph import current_session
from harness.mutants import Mutant, wrap


def while_recording(forward: Any, self: Any, x: Any) -> Any:
    if current_session() is not None:
        gc.collect()
    return forward(self, x)


def before(forward: Any, self: Any, x: Any) -> Any:
    if current_session() is None:
        gc.collect(0)
    return forward(self, x)


MUTANT = Mutant(
    kind="CAPTURE",
    variant="garbage collected while recording",
    changes="the norm collects garbage while it is recorded",
    control_is="it collects in every run that is not recorded.",
    caught_by=("crashed in capture",),
    says="That garbage was collected while capturing, at which line, and when to collect instead.",
    plant=lambda: wrap(RMSNorm, "forward", while_recording),
    control=lambda: wrap(RMSNorm, "forward", before),
    cpu_only="a GPU's capture survives a collection that happens to free nothing of CUDA's",
)
