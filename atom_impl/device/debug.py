"""A device whose segments run eagerly: the real replay path, without a recorded graph in it.

When a replay gives wrong tokens, the first question is whether the fault lies in the bookkeeping around the graphs or
in the graphs. Here a segment is a list of operator calls that `replay` makes one by one, on tensors that are all kept.
Everything else is as ever: buckets, inputs, copies, regions, hand-offs, outputs.

    still wrong   the bookkeeping: a stale input, a moved address, a result that was not handed on, a Python value
                  that the model gave to an operator while it recorded
    right now     the graphs: a block freed and used again, a host value frozen inside an operator's body (bodies run
                  again here), an order between streams, a kernel that a capture holds wrongly

It cannot see launches that are neither operators nor Inductor's kernels: a Triton kernel or `launch()` in a unit's
own code has to be inside a custom operator. It keeps all intermediates, so its memory is the sum of the buckets, and it
says nothing about speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from atom_impl.device.base import CaptureError, Device, Graph, PoolHandle, SideStream
from atom_impl.device.debug_kernels import GeneratedKernels
from atom_impl.device.debug_log import CallLog, LoggingMode, capturing


class DebugGraph:
    """One segment as a list of calls, with the call surface of `torch.cuda.CUDAGraph`."""

    def __init__(self, kernels: GeneratedKernels, device_type: str) -> None:
        self._kernels = kernels
        self._device_type = device_type
        self._pool: PoolHandle | None = None
        self._log: CallLog | None = None

    @property
    def calls(self) -> int:
        return len(self._log.calls) if self._log is not None else 0

    def capture_begin(self, pool: PoolHandle | None = None, capture_error_mode: str = "thread_local") -> None:
        """Log this thread's operator calls from here. They run; `capture_end` takes back what they changed."""
        if capturing.log is not None:
            raise CaptureError("capture_begin() while a debug graph is capturing on this thread; captures do not nest")
        self._kernels.update()
        self._pool = pool
        self._log = capturing.log = CallLog(self._device_type)

    def capture_end(self) -> None:
        if self._log is None or capturing.log is not self._log:
            raise RuntimeError("capture_end() without capture_begin() on this thread")
        self._log.check_can_end()
        capturing.log = None
        self._log.undo()

    def replay(self) -> None:
        """Make every call again, eagerly, on the current stream."""
        if self._log is None or capturing.log is not None:
            raise RuntimeError("this debug graph cannot replay: it holds no finished capture, or one is open")
        self._log.run()

    def pool(self) -> PoolHandle:
        """The pool that the capture was given; the calls themselves allocate where they like."""
        return self._pool

    def reset(self) -> None:
        if self._log is not None and capturing.log is self._log:
            capturing.log = None
            self._log.undo()
        self._log = None


class DebugDevice(Device):
    """`inner` with `DebugGraph`s for graphs. Pools, hand-off buffers and streams are `inner`'s."""

    def __init__(self, inner: Device) -> None:
        self.inner = inner
        self.type = inner.type
        self.torch_device = inner.torch_device
        self._kernels = GeneratedKernels()

    @contextmanager
    def recording(self) -> Iterator[None]:
        with self.inner.recording():
            try:
                with LoggingMode():
                    yield
            finally:
                capturing.log = None
                self._kernels.remove()

    def warming_up(self) -> AbstractContextManager[object]:
        return self.inner.warming_up()

    def graph(self) -> Graph:
        return DebugGraph(self._kernels, self.type)

    def new_pool(self) -> PoolHandle:
        return self.inner.new_pool()

    def release_pool(self, pool: PoolHandle) -> None:
        self.inner.release_pool(pool)

    def allocating(self, pool: PoolHandle) -> AbstractContextManager[None]:
        return self.inner.allocating(pool)

    def owns(self, pool: PoolHandle, tensor: torch.Tensor) -> bool:
        return self.inner.owns(pool, tensor)

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.inner.alias(tensor)

    def side_stream(self, name: str) -> SideStream:
        """A stream whose work runs where it stands: a debug replay is one stream, which orders everything."""
        return _InOrder(name)

    def node_count(self, graph: Graph) -> int:
        """Logged calls; a call may launch several kernels."""
        if not isinstance(graph, DebugGraph):
            raise ValueError(f"{graph!r} is no debug graph")
        return graph.calls

    def abort(self, graph: Graph) -> None:
        graph.reset()

    def pool_bytes(self, pool: PoolHandle) -> int:
        return self.inner.pool_bytes(pool)

    def synchronize(self) -> None:
        self.inner.synchronize()


class _InOrder:
    def __init__(self, name: str) -> None:
        self.name = name

    def fork(self) -> None:
        """Nothing to wait for."""

    def join(self) -> None:
        """Nothing to wait for."""

    def __enter__(self) -> _InOrder:
        return self

    def __exit__(self, *_: object) -> None:
        return None
