"""A pool of memory that graphs share, and aliases that look at it without keeping it.

A recording that holds its intermediates strongly never lets a block go, and the pool becomes the sum of all buckets. A
recording therefore holds aliases: the same elements at the same address, with no share in the block's life.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from atom_impl.device.software.arena import arena_mode, library, record_into

#: Address space of one pool. It is reserved, not taken: pages arrive when they are written.
CAPACITY_BYTES = 64 << 30
_SMALLEST_CAPACITY_BYTES = 256 << 20


class Pool:
    """One pool. Its blocks live as long as their tensors; the address range outlives even those."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._library = library()
        self.id = self._reserve(capacity_bytes)
        self.base: int = self._library.pool_base(self.id)
        self.end = self.base + self.capacity_bytes
        self.record_mode = record_into(self.id)
        weakref.finalize(self, self._library.pool_close, self.id).atexit = False

    def _reserve(self, capacity_bytes: int) -> int:
        """Halve what is asked for until a machine with an address-space limit grants it."""
        self.capacity_bytes = capacity_bytes
        while True:
            pool_id: int = self._library.pool_create(self.capacity_bytes)
            if pool_id >= 0:
                return pool_id
            if self.capacity_bytes // 2 < _SMALLEST_CAPACITY_BYTES:
                raise MemoryError(
                    f"no {self.capacity_bytes} bytes of address space for a graph pool; raise the limit (ulimit -v)"
                )
            self.capacity_bytes //= 2

    @property
    def peak_bytes(self) -> int:
        """High-water mark: the bytes from the pool's start to the end of the highest block it ever held."""
        return int(self._library.pool_peak(self.id))

    @property
    def used_bytes(self) -> int:
        """Bytes in live blocks now."""
        return int(self._library.pool_used(self.id))

    @property
    def outside(self) -> tuple[int, int, int]:
        """Blocks taken, their bytes, and blocks given back while nothing captured into the pool, since it was made."""
        ask = self._library
        return ask.pool_taken(self.id), ask.pool_taken_bytes(self.id), ask.pool_returned(self.id)

    def holds_address(self, address: int) -> bool:
        return self.base <= address < self.end

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor`'s storage lies in this pool. A tensor without elements lies nowhere."""
        return tensor.layout is torch.strided and self.holds_address(tensor.untyped_storage().data_ptr())

    def poison_free(self) -> int:
        """Fill every free block with 0xFF (NaN, -1). Returns the bytes filled."""
        return int(self._library.pool_poison_free(self.id))

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """This thread's CPU allocations land in the pool."""
        with arena_mode(self.record_mode):
            yield

    def __repr__(self) -> str:
        return f"Pool({self.id}, peak_bytes={self.peak_bytes})"


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`'s elements without a share in its storage. The caller knows that the memory stays in place."""
    storage = tensor.untyped_storage()
    unowned = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
    with torch._C._DisableTorchDispatch():
        view = torch.empty(0, dtype=tensor.dtype)
        view = view.set_(unowned, tensor.storage_offset(), tensor.size(), tensor.stride())
        if tensor.is_conj():
            view = view.conj()
        return torch._neg_view(view) if tensor.is_neg() else view


@contextmanager
def poisoning(enabled: bool) -> Iterator[None]:
    """Whether blocks are filled with 0xFF when they are freed and handed out. On by default, process-wide."""
    global _poisoning
    before = _poisoning
    set_poisoning(enabled)
    try:
        yield
    finally:
        set_poisoning(before)


def set_poisoning(enabled: bool) -> None:
    """See `poisoning`; this one stays."""
    global _poisoning
    _poisoning = enabled
    library().arena_poison(int(enabled))


def is_poisoning() -> bool:
    return _poisoning


_poisoning = True
