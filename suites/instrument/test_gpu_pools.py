"""Guards against a use of the recordings' pool that only a lucky value would show: a block taken and given back between
two replays leaves every figure of the allocator as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from atom_impl.device import get_device
from harness.engines.gpu_pools import read_use, watching_pools
from harness.engines.observed import PoolUse
from harness.engines.pool_watch import PoolWatch

POOL = (0, 7)
SEGMENTS = [
    {"address": 1000, "total_size": 500, "segment_pool_id": POOL},
    {"address": 2000, "total_size": 500, "segment_pool_id": (0, 0)},
]


def entry(action: str, address: int, size: int, *frames: tuple[str, int, str]) -> dict[str, Any]:
    named = [{"filename": name, "line": line, "name": function} for name, line, function in frames]
    return {"action": action, "addr": address, "size": size, "frames": named}


def test_only_blocks_of_the_named_pools_count_and_the_first_line_outside_torch_is_told() -> None:
    history = [
        entry("alloc", 2000, 64, ("engine.py", 1, "ordinary")),
        entry("segment_alloc", 1000, 500),
        entry("alloc", 1000, 128, ("/site-packages/torch/functional.py", 9, "empty"), ("engine.py", 3, "region")),
        entry("free_requested", 1000, 128),
        entry("free_completed", 1000, 128),
        entry("alloc", 1499, 1),
        entry("alloc", 1500, 1),
    ]
    assert read_use(history, SEGMENTS, [POOL]) == PoolUse(2, 129, 1, "engine.py:3 in region")


def test_a_history_without_the_pool_is_no_use() -> None:
    assert read_use([entry("alloc", 2000, 64)], SEGMENTS, [POOL]) == PoolUse()


def test_without_a_pool_nothing_is_watched_and_nothing_is_claimed() -> None:
    with watching_pools([]) as use:
        pass
    assert use() is None


def test_a_block_taken_and_given_back_is_seen_although_the_pool_is_as_before(device: str) -> None:
    """With the allocator of the device under test."""
    target = get_device()
    pool = target.new_pool()
    with target.allocating(pool):
        torch.empty(64, device=device)
    with watched(device, pool) as use:
        with target.allocating(pool):
            torch.empty(64, device=device)
        torch.empty(64, device=device)
    seen = use()
    assert seen is not None
    assert (seen.taken, seen.returned) == (1, 1)
    with watched(device, pool) as quiet:
        torch.empty(64, device=device)
    assert quiet() == PoolUse()


def test_a_block_that_was_taken_before_and_given_back_meanwhile_is_seen(device: str) -> None:
    target = get_device()
    pool = target.new_pool()
    with target.allocating(pool):
        held = [torch.empty(64, device=device)]
    with watched(device, pool) as use:
        held.clear()
    assert use() == PoolUse(returned=1)


@contextmanager
def watched(device: str, pool: Any) -> Iterator[Callable[[], PoolUse | None]]:
    if device == "cuda":
        with watching_pools([pool]) as use:
            yield lambda: _unplaced(use())
    else:
        yield PoolWatch([pool]).use


def _unplaced(use: PoolUse | None) -> PoolUse | None:
    return None if use is None else replace(use, site="")
