"""The recording does not write the last row of its output: the caller reads whoever was there before."""

from typing import Any

from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.utils.forward_context import get_forward_context
from atom_impl.utils.step_ledger import CopyKind
from harness.mutants import Mutant, swap


def deliver(self: Any, ids: Any, positions: Any, missing: int) -> None:
    hidden = self.model(ids, positions)
    rows = hidden.shape[0] - missing
    self.forward_vars["outputs"][:rows].copy_(hidden[:rows])
    record: Any = get_forward_context().record
    record.copied(CopyKind.OUTPUT, hidden.nbytes)


MUTANT = Mutant(
    kind="STALE",
    variant="last output row not written",
    changes="a request graph copies all rows of its result but the last, and claims all",
    control_is="the same code with no row missing.",
    caught_by=("G1", "G1.first"),
    says="Bucket, row and step, and that NaN put there before the replay is left: an output that was not written.",
    plant=lambda: swap(ModelRunner, "_full_forward", lambda self, ids, at: deliver(self, ids, at, 1)),
    control=lambda: swap(ModelRunner, "_full_forward", lambda self, ids, at: deliver(self, ids, at, 0)),
    gpu=True,
)
