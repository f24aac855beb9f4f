"""A cache without its scratch block, or a byte too small for its heads, is another request's memory."""

from __future__ import annotations

import pytest
import torch

from atom_impl.model_ops.kv_cache import KVCacheTensor, allocate_kv_cache, kv_bytes_per_block


def test_an_allocated_cache_has_one_scratch_block_more_and_counts_its_bytes() -> None:
    sizes = {"block_size": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": torch.bfloat16}
    caches = allocate_kv_cache(["a", "b"], num_blocks=10, device="cpu", **sizes)  # type: ignore[arg-type]
    assert caches["a"].num_blocks == 10
    assert caches["a"].k_cache.shape[0] == 11
    total = sum(x.nbytes for kv in caches.values() for x in (kv.k_cache, kv.v_cache))
    assert total == 11 * kv_bytes_per_block(2, 4, 2, 16, torch.bfloat16)


@pytest.mark.parametrize("blocks", [0, -1])
def test_a_cache_without_blocks_is_refused(blocks: int) -> None:
    with pytest.raises(ValueError, match="holds nothing; both must be at least 1"):
        allocate_kv_cache(
            ["a"], num_blocks=blocks, block_size=4, num_kv_heads=2, head_dim=16, dtype=torch.float32, device="cpu"
        )


def test_keys_and_values_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"both must be \[blocks \+ 1"):
        KVCacheTensor(torch.zeros(2, 4, 2, 16), torch.zeros(2, 4, 2, 8))
