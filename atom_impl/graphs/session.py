"""One recording session: segments are captured, eager regions break them, and a failure leaves nothing half recorded.

The order is always the same: end the segment, replay it once (a capture computes nothing, and the region must see
data), run the region for real, put its result where the next segment will read it, begin the next segment.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn

from atom_impl.compilation.compile_gate import refusing_compiles
from atom_impl.device.base import CaptureError, Device, Graph, PoolHandle
from atom_impl.graphs.recording import (
    HandOff,
    InputSlot,
    MetadataLeaf,
    Recording,
    Region,
    Segment,
    settled,
    weight_addresses,
)
from atom_impl.utils import tree
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.forward_context import get_forward_context
from atom_impl.utils.step_ledger import StepRecord

F = TypeVar("F", bound=Callable[..., Any])
_thread = threading.local()


def current_session() -> Session | None:
    """The session that records on this thread, if any."""
    return getattr(_thread, "session", None)


class Session:
    """Records one `Recording`. With `breaks` off, eager regions are recorded inline (request graphs)."""

    def __init__(self, device: Device, pool: PoolHandle, label: str, rows: int, *, breaks: bool) -> None:
        self.device = device
        self.pool = pool
        self.breaks = breaks
        self.recording = Recording(label, rows)
        self._graph: Graph | None = None
        self._in_region = False

    def record(self, forward: Callable[[], Any], deliver: Callable[[Any], Any]) -> Recording:
        """Record `forward`. `deliver` runs inside the last segment, takes the result out of the pool and returns it.

        Copies that the step's record was told of meanwhile are copies of each replay.
        """
        if current_session() is not None:
            raise CaptureError(f"{self.recording.label}: a recording is already in progress on this thread")
        _thread.session = self
        try:
            with refusing_compiles(f"{self.recording.label} is being recorded"), self.device.recording():
                self._record(forward, deliver)
        except BaseException:
            self.recording.reset()
            raise
        finally:
            _thread.session = None
        return self.recording

    def _record(self, forward: Callable[[], Any], deliver: Callable[[Any], Any]) -> None:
        record = get_forward_context().record or StepRecord()
        before = copy.deepcopy(record.copies)
        try:
            self._begin()
            self.recording.outputs = deliver(forward())
            self._end()
            self.recording.copies = record.copies_since(before)
        except BaseException:
            if self._graph is not None:
                graph, self._graph = self._graph, None
                self.device.abort(graph)
            raise

    def region(self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Break the segment, run `body` eagerly on the live step, and continue with its result at a fixed address."""
        if not self.breaks or self._in_region:
            return body(*args, **kwargs)
        self._end()
        self._in_region = True
        try:
            result = body(*args, **kwargs)
        finally:
            self._in_region = False
        result = tree.map_tensors(settled, result)
        handoffs: list[HandOff] = []
        result = self._hand_off(result, (args, kwargs), handoffs)
        bound_args, bound_kwargs = tree.map_tensors(self._bind, (args, kwargs))
        name = getattr(body, "__name__", type(body).__name__)
        self.recording.steps.append(Region(name, body, bound_args, bound_kwargs, handoffs))
        self._begin()
        return result

    def _begin(self) -> None:
        graph = self.device.graph()
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        self._graph = graph

    def _end(self) -> None:
        graph = self._graph
        if graph is None:
            raise CaptureError(f"{self.recording.label}: no segment is open")
        graph.capture_end()
        self._graph = None
        nodes = self.device.node_count(graph)
        if nodes == 0:
            graph.reset()  # an empty graph costs a launch, and some runtimes reject it
            return
        self.recording.steps.append(Segment(graph, nodes))
        compilation_counter.num_cudagraph_captured += 1
        graph.replay()

    def _bind(self, tensor: torch.Tensor) -> torch.Tensor:
        """A handle for the replays: strong for outside tensors, an alias for pool tensors.

        Strong handles on pool tensors would keep every bucket's blocks apart and make the pool the buckets' sum.
        """
        return self.device.alias(tensor) if self.device.owns(self.pool, tensor) else tensor

    def _hand_off(self, result: Any, given: Any, handoffs: list[HandOff]) -> Any:
        arguments = {tensor.untyped_storage().data_ptr() for _, tensor in tree.tensors(given)}
        paths = iter([path for path, _ in tree.leaves(result)])

        def place(leaf: Any) -> Any:
            path = next(paths)
            if not isinstance(leaf, torch.Tensor):
                handoffs.append(HandOff(path, constant=leaf))
                return leaf
            if leaf.untyped_storage().data_ptr() in arguments:
                handoffs.append(HandOff(path, target=self._bind(leaf), is_alias=True))
                return leaf
            with self.device.allocating(self.pool):
                buffer = _like(leaf)
            buffer.copy_(leaf)
            handoffs.append(HandOff(path, target=self.device.alias(buffer)))
            return buffer

        return tree.map_leaves(place, result)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A buffer with `tensor`'s layout, or a dense one where elements of `tensor` share memory."""
    if torch._debug_has_internal_overlap(tensor) == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return torch.empty(tensor.size(), dtype=tensor.dtype, device=tensor.device)


def record(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    device: Device,
    pool: PoolHandle,
    label: str,
    rows: int,
    breaks: bool,
    deliver: Callable[[Any], Any],
    module: nn.Module | None = None,
) -> Recording:
    """Record `forward(*args, **kwargs)` on the live forward context.

    The caller has warmed the same call up on the same stream. Raises `CaptureError` for what a graph cannot hold; then
    nothing is replayable and device, context and pool are as before.
    """
    session = Session(device, pool, label, rows, breaks=breaks)
    recording = session.record(lambda: forward(*args, **kwargs), deliver)
    recording.inputs = [InputSlot(path, leaf) for path, leaf in tree.leaves((args, kwargs))]
    metadata = get_forward_context().attn_metadata
    recording.metadata = [MetadataLeaf(path, find, t.data_ptr()) for path, find, t in tree.places(metadata)]
    if module is not None:
        recording.module = weakref.ref(module)
        recording.weights = weight_addresses(module)
    return recording


def eager_region(function: F) -> F:
    """Declare that `function`'s launches depend on host data of the step: a token graph breaks here and runs it
    eagerly.

    It is a plain call when nothing records, inside another region, and inside a request graph. It must close over
    nothing of a step: it reads the live forward context. Apply it outermost, on the function that is registered as the
    operator's body.
    """

    @functools.wraps(function)
    def region(*args: Any, **kwargs: Any) -> Any:
        session = current_session()
        return function(*args, **kwargs) if session is None else session.region(function, args, kwargs)

    region.__eager_region__ = True  # type: ignore[attr-defined]
    return cast(F, region)
