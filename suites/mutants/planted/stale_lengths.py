"""One metadata leaf is rebuilt on the host each step, and its copy into the recorded buffer is forgotten."""

from typing import Any

from atom_impl.model_engine.staging import CpuGpuBuffer, StagingBuffers
from atom_impl.utils.step_ledger import CopyKind
from harness.mutants import Mutant, wrap


def mark(stage: Any, self: Any, batch: Any, mode: Any, record: Any) -> Any:
    self.context_lens.is_stale = mode.use_cudagraph
    return stage(self, batch, mode, record)


def forget(copy: Any, self: Any, count: int, record: Any) -> Any:
    if not getattr(self, "is_stale", False):
        return copy(self, count, record)
    record.copied(CopyKind.STAGING, self.gpu[:count].nbytes)
    return self.gpu[:count]


def poison_first(copy: Any, self: Any, count: int, record: Any) -> Any:
    self.gpu.fill_(-7)
    return copy(self, count, record)


MUTANT = Mutant(
    kind="STALE",
    variant="context lengths not copied",
    changes="a replayed step claims the copy of context_lens and leaves it out",
    control_is="the old values are destroyed before every copy.",
    caught_by=("G1", "G1.first"),
    says="Bucket, step, row, and an input that the recording does not see; audit.staging counts the missing copy.",
    plant=lambda: (wrap(StagingBuffers, "stage", mark), wrap(CpuGpuBuffer, "copy_to_gpu", forget)),
    control=lambda: wrap(CpuGpuBuffer, "copy_to_gpu", poison_first),
    quick=True,
    gpu=True,
)
