"""The CPU as a device that records graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from atom_impl.device.base import CaptureError, Device, Graph, PoolHandle
from atom_impl.device.software import pool as pools
from atom_impl.device.software.accesses import ReadBeforeWrite, reads_before_writes
from atom_impl.device.software.arena import library
from atom_impl.device.software.graph import SoftwareGraph
from atom_impl.device.software.pool import Pool
from atom_impl.device.software.session import recording
from atom_impl.device.software.streams import SideStream
from atom_impl.device.software.thread_state import current, state


def launch(fn: Callable[..., Any], *args: Any, name: str | None = None, written: Iterable[int] | None = None) -> Any:
    """Call `fn(*args)`, a kernel that is no torch operator (ctypes, Numba, a Triton interpreter), as one launch.

    While capturing it becomes one entry: `fn` runs again at every replay, on the recorded addresses and with host
    values as they were. Otherwise it is a plain call. `written` gives the positions of the arguments that it may write;
    by default any tensor that is no parameter.
    """
    graph = current()
    if graph is None:
        return fn(*args)
    return graph.recorder.launch(fn, args, name or str(getattr(fn, "__name__", type(fn).__name__)), written)


class SoftwareDevice(Device):
    """`Device` over `SoftwareGraph`. `poison` (on by default, process-wide) fills freed and fresh blocks with NaN."""

    type = "cpu"
    torch_device = torch.device("cpu")

    def recording(self) -> AbstractContextManager[None]:
        return recording()

    def graph(self) -> SoftwareGraph:
        if not state.in_session:
            raise CaptureError("a graph is recorded within `recording()`; open a session first")
        return SoftwareGraph()

    def new_pool(self) -> Pool:
        return Pool()

    def release_pool(self, pool: PoolHandle) -> None:
        """Nothing to do: a pool goes with whoever holds it last."""

    def allocating(self, pool: PoolHandle) -> AbstractContextManager[None]:
        if current() is not None:
            raise CaptureError("allocating() while this thread captures: a capture already allocates from its pool")
        return _pool(pool).allocating()

    def owns(self, pool: PoolHandle, tensor: torch.Tensor) -> bool:
        return _pool(pool).owns(tensor)

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() and library().pool_find(tensor.untyped_storage().data_ptr()) < 0:
            raise ValueError(
                f"alias() of a tensor outside every pool, {list(tensor.shape)} {tensor.dtype}: "
                "nothing would keep its memory; hold the tensor itself"
            )
        return pools.alias(tensor)

    def side_stream(self, name: str) -> SideStream:
        """The stream called `name`. A capture ends with an error when it is not joined, or when it races."""
        return SideStream(name)

    def node_count(self, graph: Graph) -> int:
        return _graph(graph).node_count

    def abort(self, graph: Graph) -> None:
        _graph(graph).abort()

    def pool_bytes(self, pool: PoolHandle) -> int:
        return _pool(pool).peak_bytes

    def synchronize(self) -> None:
        if current() is not None:
            raise CaptureError(
                "synchronize() while this thread captures: a GPU cannot wait for work that is only recorded"
            )

    def reads_before_writes(self, graphs: Iterable[Graph]) -> list[ReadBeforeWrite]:
        """`SoftwareGraph.reads_before_writes` of graphs that always replay together, in this order (a recording's
        segments): what one sets back, a later one may read.
        """
        return list(reads_before_writes([entry for graph in graphs for entry in _graph(graph).launches]))

    def poison_free(self, pool: PoolHandle) -> int:
        """Fill every free block of `pool` with NaN bytes, whatever the switch says; returns the bytes filled."""
        return _pool(pool).poison_free()

    @property
    def poison(self) -> bool:
        return pools.is_poisoning()

    @poison.setter
    def poison(self, enabled: bool) -> None:
        pools.set_poisoning(enabled)


def _pool(handle: PoolHandle) -> Pool:
    if not isinstance(handle, Pool):
        raise ValueError(f"{handle!r} is no pool of the software graph; take the handle from new_pool()")
    return handle


def _graph(graph: Graph) -> SoftwareGraph:
    if not isinstance(graph, SoftwareGraph):
        raise ValueError(f"{graph!r} is no software graph")
    return graph
