"""The pools of a CUDA or HIP device, each kept until it is released and its last graph has gone.

torch asserts when a pool is captured into after its last graph has gone, and some of its releases assert when the pool
goes first. So a pool has an anchor, a graph that stays. A device that kept every anchor for ever kept the memory of
every session as well, until the process ended.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from atom_impl.device.base import PoolHandle


class CudaPools:
    """Pools by handle. `make` gives a new `torch.cuda.MemPool`, `anchor` a graph recorded into it."""

    def __init__(
        self,
        anchor: Callable[[torch.cuda.MemPool], torch.cuda.CUDAGraph],
        make: Callable[[], torch.cuda.MemPool] = torch.cuda.MemPool,
    ) -> None:
        self._anchor, self._make = anchor, make
        self._live: dict[PoolHandle, tuple[torch.cuda.MemPool, torch.cuda.CUDAGraph]] = {}
        self._released: list[torch.cuda.MemPool] = []

    def new(self) -> PoolHandle:
        self._drop_unused()
        pool = self._make()
        self._live[pool.id] = pool, self._anchor(pool)
        return pool.id

    def __getitem__(self, handle: PoolHandle) -> torch.cuda.MemPool:
        return self._live[handle][0]

    def release(self, handle: PoolHandle) -> None:
        """Give the pool's memory back: now, or once its last graph has gone. A handle released before is no error."""
        pool, anchor = self._live.pop(handle, (None, None))
        if pool is None or anchor is None:
            return
        anchor.reset()
        self._released.append(pool)
        del pool
        self._drop_unused()

    def _drop_unused(self) -> None:
        """A pool is in use once for its object, and once more for each graph that is still recorded into it."""
        self._released = [pool for pool in self._released if pool.use_count() > 1]
