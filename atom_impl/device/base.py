"""What a region graph needs of a device: a recording session, graphs in a pool, and who owns a tensor.

A recorded graph reads the addresses it was recorded with. Everything here exists because an address that moved, a
block that was freed, or work that ran outside the session gives wrong tokens with every functional test green.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

PoolHandle = Hashable


class CaptureError(RuntimeError):
    """Something that a GPU cannot record happened while a graph was recording; the message names the call site."""


def unjoined(stream: str) -> CaptureError:
    """The error for a segment that ends while `stream` has work that the main stream does not wait for."""
    return CaptureError(
        f"side stream {stream} is not joined when its segment ends: a region or the end of the capture comes first; "
        "call join() before it, on the stream that forked"
    )


class SideStream(Protocol):
    """A stream beside the current one: `fork()`, launch within `with stream:`, `join()`, all within one segment."""

    name: str

    def fork(self) -> None: ...
    def join(self) -> None: ...
    def __enter__(self) -> object: ...
    def __exit__(self, *_: object) -> None: ...


class Graph(Protocol):
    """One recorded graph, with the call surface of `torch.cuda.CUDAGraph`."""

    def capture_begin(self, pool: PoolHandle | None = None, capture_error_mode: str = "thread_local") -> None: ...
    def capture_end(self) -> None: ...
    def replay(self) -> None: ...
    def reset(self) -> None: ...
    def pool(self) -> PoolHandle: ...


class Device(ABC):
    """A device that records graphs. `region_graph` is written once against this class."""

    #: "cuda" (NVIDIA and AMD alike, as torch names it) or "cpu"
    type: str
    torch_device: torch.device

    @abstractmethod
    def recording(self) -> AbstractContextManager[None]:
        """One session on one stream: no garbage collection, no compile, deny rules on. Nesting raises
        `CaptureError`.
        """

    def warming_up(self) -> AbstractContextManager[object]:
        """Where the run before a recording happens: workspaces, handles and lazy kernels belong to a stream."""
        return nullcontext()

    @abstractmethod
    def graph(self) -> Graph:
        """A new, empty graph; only usable within `recording()`."""

    @abstractmethod
    def new_pool(self) -> PoolHandle:
        """A memory pool that outlives every graph recorded into it."""

    @abstractmethod
    def release_pool(self, pool: PoolHandle) -> None:
        """Give `pool`'s memory back; nothing recorded in it may replay again."""

    @abstractmethod
    def allocating(self, pool: PoolHandle) -> AbstractContextManager[None]:
        """Eager allocations on this thread land in `pool`. Used between captures for hand-off buffers."""

    @abstractmethod
    def owns(self, pool: PoolHandle, tensor: torch.Tensor) -> bool:
        """Whether `tensor`'s storage lies in `pool`."""

    @abstractmethod
    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements without a share in the storage's lifetime. Only for tensors that a pool keeps in place."""

    @abstractmethod
    def side_stream(self, name: str) -> SideStream:
        """The stream called `name`, for work beside the current stream. Joined before a segment ends, or
        `CaptureError` names it.
        """

    @abstractmethod
    def node_count(self, graph: Graph) -> int:
        """Operations in a recorded graph: kernels, copies and fills. Zero means that replaying it does nothing."""

    @abstractmethod
    def abort(self, graph: Graph) -> None:
        """End a capture that failed; afterwards the graph replays nothing and the device is usable."""

    @abstractmethod
    def pool_bytes(self, pool: PoolHandle) -> int:
        """Bytes that `pool` has taken from the machine."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all submitted work is done."""
