"""The host writes the next step into the pinned buffer while the copy of this one is in flight; no fence."""

from typing import Any

from atom_impl.model_engine.staging import CpuGpuBuffer, StagingBuffers
from harness.mutants import Mutant, wrap


def mark(stage: Any, self: Any, batch: Any, mode: Any, record: Any) -> Any:
    self.positions.in_flight = mode.use_cudagraph
    return stage(self, batch, mode, record)


def unfenced(copy: Any, self: Any, count: int, record: Any) -> Any:
    if getattr(self, "in_flight", False):
        self.cpu.add_(1)  # what the next step's position would be
    return copy(self, count, record)


def fenced(copy: Any, self: Any, count: int, record: Any) -> Any:
    target = copy(self, count, record)
    if getattr(self, "in_flight", False):
        self.cpu.add_(1)
    return target


MUTANT = Mutant(
    kind="RACE",
    variant="staging without a fence",
    changes="positions of a replayed step are rewritten before their copy runs",
    control_is="rewritten after it.",
    caught_by=("G1", "G1.first"),
    says="Bucket, step and row, and an input that the recording does not see: among others a RACE with its upload.",
    plant=lambda: (wrap(StagingBuffers, "stage", mark), wrap(CpuGpuBuffer, "copy_to_gpu", unfenced)),
    control=lambda: (wrap(StagingBuffers, "stage", mark), wrap(CpuGpuBuffer, "copy_to_gpu", fenced)),
    simulated=True,
    gpu=True,
)
