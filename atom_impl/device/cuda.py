"""CUDA and HIP graphs: torch gives both one API, and both fail in the same quiet ways.

A capture computes nothing; a block freed between captures is reused by the next; a pool whose last graph died asserts
inside torch. The session below holds one stream and one pool for as long as there is anything to replay.
"""

from __future__ import annotations

import ctypes
import gc
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch

from atom_impl.device.base import CaptureError, Device, Graph, PoolHandle
from atom_impl.device.cuda_pools import CudaPools
from atom_impl.device.cuda_streams import CudaSideStream, explain, join_forgotten


class CudaDevice(Device):
    type = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA or HIP device; use device 'cpu' or a torch built for this GPU")
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self.torch_device)
        self._pools = CudaPools(self._anchor)
        self._segments: dict[PoolHandle, list[tuple[int, int]]] = {}
        self._recording = False
        self._side_streams: dict[str, CudaSideStream] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        if self._recording:
            raise CaptureError("a recording session is already open on this device; sessions do not nest")
        self._recording = True
        collecting = gc.isenabled()
        gc.collect()
        gc.disable()  # a finaliser that unloads a module aborts a capture
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._recording = False
            if collecting:
                gc.enable()

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def graph(self) -> Graph:
        if not self._recording:
            raise CaptureError("a graph is recorded within `recording()`; open a session first")
        return cast(Graph, _CountableGraph(keep_graph=True))

    def new_pool(self) -> PoolHandle:
        return self._pools.new()

    def release_pool(self, pool: PoolHandle) -> None:
        self._segments.pop(pool, None)
        self._pools.release(pool)

    def _anchor(self, pool: torch.cuda.MemPool) -> torch.cuda.CUDAGraph:
        """A graph that stays; see `cuda_pools.py`."""
        cell = torch.zeros(1, device=self.torch_device)
        anchor: Any = torch.cuda.CUDAGraph()
        with self.warming_up():
            anchor.capture_begin(pool=pool.id, capture_error_mode="thread_local")
            cell.zero_()
            anchor.capture_end()
        return anchor

    @contextmanager
    def allocating(self, pool: PoolHandle) -> Iterator[None]:
        with torch.cuda.use_mem_pool(self._pools[pool]):
            yield
        self._segments.pop(pool, None)

    def owns(self, pool: PoolHandle, tensor: torch.Tensor) -> bool:
        if not tensor.is_cuda:
            return False
        address = tensor.untyped_storage().data_ptr()

        def known() -> bool:
            return any(begin <= address < end for begin, end in self._segments.get(pool, ()))

        if not known():
            self._segments[pool] = self._read_segments(pool)
        return known()

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        unowned = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
        view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return view.set_(unowned, tensor.storage_offset(), tensor.size(), tensor.stride())

    def side_stream(self, name: str) -> CudaSideStream:
        if name not in self._side_streams:
            self._side_streams[name] = CudaSideStream(name, self.torch_device)
        return self._side_streams[name]

    def node_count(self, graph: Graph) -> int:
        return _count_nodes(cast(Any, graph).raw_cuda_graph())

    def abort(self, graph: Graph) -> None:
        with suppress(RuntimeError):  # an invalidated capture says so again when it is ended
            graph.capture_end()
        graph.reset()

    def pool_bytes(self, pool: PoolHandle) -> int:
        return sum(end - begin for begin, end in self._read_segments(pool))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    @staticmethod
    def _read_segments(pool: PoolHandle) -> list[tuple[int, int]]:
        wanted = tuple(cast("tuple[int, int]", pool))
        return [
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == wanted
        ]


class _CountableGraph(torch.cuda.CUDAGraph):
    """Made with `keep_graph`, so that its nodes can be counted. An empty segment is dropped by its caller, not
    warned of.
    """

    def capture_end(self) -> None:
        forgotten = join_forgotten()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            try:
                super().capture_end()
            except RuntimeError as error:
                raise explain(error) from error
        if forgotten is not None:
            raise forgotten


@cache
def _runtime() -> tuple[ctypes.CDLL, str]:
    """The CUDA or HIP runtime that torch has already loaded, and its function prefix."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.search(r"(/\S*lib(cudart|amdhip64)[^/\s]*\.so[^/\s]*)$", line)
        if match:
            return ctypes.CDLL(match.group(1)), "cuda" if match.group(2) == "cudart" else "hip"
    raise RuntimeError("neither libcudart nor libamdhip64 is loaded in this process; is this a GPU build of torch?")


def _count_nodes(raw_graph: int) -> int:
    library, prefix = _runtime()
    count = ctypes.c_size_t(0)
    status = getattr(library, f"{prefix}GraphGetNodes")(ctypes.c_void_p(raw_graph), None, ctypes.byref(count))
    if status != 0:
        raise RuntimeError(f"{prefix}GraphGetNodes failed with status {status}")
    return count.value
