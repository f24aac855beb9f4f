"""Pad rows have slot -1, and the cache is written with plain indexing: -1 is the last slot of somebody's block."""

from typing import Any

import torch

from atom_impl.model_ops.kv_cache import KVCacheTensor
from harness.mutants import Mutant, wrap


def plain(write: Any, self: Any, k: Any, v: Any, slots: Any, live: Any = None) -> None:
    write(self, k, v, slots % self.num_slots)


def to_scratch(write: Any, self: Any, k: Any, v: Any, slots: Any, live: Any = None) -> None:
    write(self, k, v, torch.where(slots < 0, self.num_slots, slots), live)


MUTANT = Mutant(
    kind="PADDING",
    variant="slot -1 indexes from the end",
    changes="the cache write takes slots modulo the cache and ignores which rows are live",
    control_is="negative slots go to the declared scratch block.",
    caught_by=("G2.kv",),
    says="Arm, bucket, KV tensor, block and offset of the slot that no live row owns: a pad row's slot.",
    plant=lambda: wrap(KVCacheTensor, "write", plain),
    control=lambda: wrap(KVCacheTensor, "write", to_scratch),
    quick=True,
    gpu=True,
)
