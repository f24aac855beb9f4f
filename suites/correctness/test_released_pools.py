"""Every session that closed left its pool to the device for good: a process of ten sessions held ten pools.

torch's pools are faked here, down to what counts: a pool that goes before its last graph aborts the process.
"""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from atom_impl.device import get_device
from atom_impl.device.cuda_pools import CudaPools
from atom_impl.device.debug import DebugDevice
from atom_impl.utils.region_graph import graph_pool, reset_graph_pool
from suites.correctness.region_steps import WIDTH, recorded


class FakePool:
    """`torch.cuda.MemPool`: used once for itself, and once for each graph recorded into it."""

    made = 0

    def __init__(self) -> None:
        FakePool.made += 1
        self.id = (0, FakePool.made)
        self.graphs: set[FakeGraph] = set()

    def use_count(self) -> int:
        return 1 + len(self.graphs)


class FakeGraph:
    def __init__(self, pool: FakePool) -> None:
        self._graphs = pool.graphs  # not the pool: a graph does not keep torch's object alive
        self._graphs.add(self)

    def reset(self) -> None:
        self._graphs.discard(self)


@pytest.fixture
def pools() -> Any:
    anchor: Any = FakeGraph
    make: Any = FakePool
    return CudaPools(anchor, make)


def alive(pools: CudaPools, handle: Any) -> weakref.ref[Any]:
    return weakref.ref(pools[handle])


def test_a_released_pool_is_gone_and_the_others_stay(pools: CudaPools) -> None:
    handles = [pools.new() for _ in range(3)]
    held = [alive(pools, handle) for handle in handles]
    pools.release(handles[1])
    assert [found() is None for found in held] == [False, True, False]
    with pytest.raises(KeyError):
        pools[handles[1]]


def test_a_pool_with_a_graph_left_goes_after_its_last_graph(pools: Any) -> None:
    handle = pools.new()
    held, graph = alive(pools, handle), FakeGraph(pools[handle])
    pools.release(handle)
    pools.new()
    pool = held()
    assert pool is not None
    assert pool.graphs == {graph}, "its anchor is gone, and what may still replay is not"
    del pool
    graph.reset()
    pools.new()
    assert held() is None


def test_a_pool_in_use_keeps_its_anchor_so_that_it_can_be_captured_into_again(pools: Any) -> None:
    handle = pools.new()
    FakeGraph(pools[handle]).reset()
    pools.new()
    assert pools[handle].use_count() == 2


def test_releasing_twice_is_harmless(pools: CudaPools) -> None:
    handle = pools.new()
    pools.release(handle)
    pools.release(handle)


def test_a_debug_device_releases_the_pool_of_the_device_within(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[Any] = []
    inner = get_device("cpu")
    monkeypatch.setattr(type(inner), "release_pool", lambda self, pool: released.append(pool))
    DebugDevice(inner).release_pool("a pool")
    assert released == ["a pool"]


@torch.inference_mode()
def test_a_reset_gives_each_sessions_pool_back(dev: torch.device) -> None:
    device = get_device(dev.type)
    for _ in range(3):
        graph = recorded(lambda t: t * 2 + 1, torch.randn(4, WIDTH, device=dev), dev)
        pool = graph_pool(device)
        assert device.pool_bytes(pool) > 0
        graph.clear()
        reset_graph_pool()
        if dev.type == "cuda":  # a handle is a number there; the memory is what must be gone
            assert device.pool_bytes(pool) == 0
        else:
            held = weakref.ref(pool)
            del pool
            assert held() is None
        del graph
