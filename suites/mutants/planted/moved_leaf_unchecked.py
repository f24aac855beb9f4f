"""The same fault in an engine that has no address check of its own."""

from typing import Any

from atom_impl.graphs.recording import Recording
from atom_impl.model_engine.staging import StagingBuffers
from harness.mutants import Mutant, swap, wrap


def fresh(stage: Any, self: Any, batch: Any, mode: Any, record: Any) -> Any:
    ids, positions, metadata = stage(self, batch, mode, record)
    if mode.use_cudagraph:
        metadata.slot_mapping = metadata.slot_mapping + 0
        self.slot_mapping.gpu.fill_(-1)
    return ids, positions, metadata


def no_check(check: Any, self: Any, live: Any) -> None:
    """Trusts every address."""


MUTANT = Mutant(
    kind="MOVED",
    variant="slots made anew, unchecked",
    changes="the slot mapping lies elsewhere and the engine does not compare addresses",
    control_is="no comparison of addresses, and none that moves.",
    caught_by=("G1", "G1.first"),
    says="Bucket, step, row, and an input that the recording does not see; the auditor names the extra operation.",
    plant=lambda: (swap(Recording, "_check_metadata", lambda *_: None), wrap(StagingBuffers, "stage", fresh)),
    control=lambda: wrap(Recording, "_check_metadata", no_check),
    quick=True,
    gpu=True,
)
