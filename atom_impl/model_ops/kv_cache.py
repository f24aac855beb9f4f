"""A layer's paged KV cache, and the one block of it that nobody owns.

A pad row whose slot is -1 wrote, by plain indexing, into the last slot of the cache: another request's newest key.
Every cache therefore ends in a declared scratch block that is in no block table. Whatever may not be written goes
there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KVCacheTensor:
    """`k_cache` and `v_cache`: [blocks + 1, block size, kv heads, head dim]. The last block is scratch."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor

    def __post_init__(self) -> None:
        if self.k_cache.shape != self.v_cache.shape or self.k_cache.dim() != 4:
            raise ValueError(
                f"k_cache is {tuple(self.k_cache.shape)} and v_cache {tuple(self.v_cache.shape)}; "
                "both must be [blocks + 1, block size, kv heads, head dim]"
            )
        if self.k_cache.shape[0] < 2 or not (self.k_cache.is_contiguous() and self.v_cache.is_contiguous()):
            raise ValueError("a KV cache is contiguous and has at least one block besides the scratch block")

    @property
    def num_blocks(self) -> int:
        """Blocks that a request may own; also the index of the scratch block."""
        return self.k_cache.shape[0] - 1

    @property
    def block_size(self) -> int:
        return self.k_cache.shape[1]

    @property
    def num_slots(self) -> int:
        """Slots that a request may own; also the first scratch slot."""
        return self.num_blocks * self.block_size

    def write(self, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, live: torch.Tensor | None = None) -> None:
        """Store `k`, `v` [rows, kv heads, head dim] at `slots` [rows]; rows that are not `live` [rows] go to scratch.

        A slot outside the cache goes to scratch as well. Device work only, with shapes fixed by the number of rows.
        """
        allowed = (slots >= 0) & (slots < self.num_slots)
        if live is not None:
            allowed = allowed & live
        row = torch.arange(slots.shape[0], device=slots.device, dtype=slots.dtype)
        target = torch.where(allowed, slots, row % self.block_size + self.num_slots)
        self.k_cache.flatten(0, 1).index_copy_(0, target, k.to(self.k_cache.dtype))
        self.v_cache.flatten(0, 1).index_copy_(0, target, v.to(self.v_cache.dtype))

    def gather(self, block_tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `block_tables` [requests, width]: two of [requests, width * block size, kv heads, head
        dim].

        An index outside the cache is read as the nearest block, scratch included: what lies past a request's length is
        masked by the reader, whatever its table says.
        """
        requests, width = block_tables.shape
        blocks = block_tables.clamp(0, self.num_blocks).flatten()
        shape = (requests, width * self.block_size, *self.k_cache.shape[2:])
        return (
            self.k_cache.index_select(0, blocks).view(shape),
            self.v_cache.index_select(0, blocks).view(shape),
        )


def allocate_kv_cache(
    layer_names: Iterable[str],
    *,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> dict[str, KVCacheTensor]:
    """Zeroed caches of `num_blocks` blocks, plus scratch, for every layer."""
    if num_blocks < 1 or block_size < 1:
        raise ValueError(
            f"a KV cache of {num_blocks} blocks of {block_size} slots holds nothing; both must be at least 1"
        )
    shape = (num_blocks + 1, block_size, num_kv_heads, head_dim)

    def zeros() -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return {name: KVCacheTensor(zeros(), zeros()) for name in layer_names}


def kv_bytes_per_block(layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all layers, keys and values together."""
    return 2 * layers * block_size * num_kv_heads * head_dim * dtype.itemsize
