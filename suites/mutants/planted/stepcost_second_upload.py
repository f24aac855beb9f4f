"""Every buffer is uploaded twice on the replay's way, and the ledger counts one."""

from typing import Any

from atom_impl.model_engine.staging import CpuGpuBuffer
from harness.mutants import Mutant, wrap


def twice(copy: Any, self: Any, count: int, record: Any) -> Any:
    self.gpu[:count].copy_(self.cpu[:count], non_blocking=True)
    return copy(self, count, record)


def once(copy: Any, self: Any, count: int, record: Any) -> Any:
    return copy(self, count, record)[:]


MUTANT = Mutant(
    kind="STEPCOST",
    variant="second upload",
    changes="each staging buffer is copied once more, unclaimed",
    control_is="copied once, and returned as another view.",
    caught_by=("audit.staging",),
    says="Arm and bucket, with the host copies and bytes that were counted and those that were claimed.",
    plant=lambda: wrap(CpuGpuBuffer, "copy_to_gpu", twice),
    control=lambda: wrap(CpuGpuBuffer, "copy_to_gpu", once),
    gpu=True,
)
