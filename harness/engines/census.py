"""A step's device work as operators, counted at the boundaries that every engine must cross.

The count owes nothing to what the engine notes: graph launches are seen at the graph's own `replay`, recorded work is
read from the graphs that were launched, eager work passes a dispatch mode, and Inductor's kernels pass their callers'
globals. Nothing of it outlives the step.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from harness.engines.observed import Observed, ObservedCopy, Place
from harness.engines.pool_watch import PoolWatch

#: Operators whose work, where they do any, is to move elements.
COPIES = frozenset(
    f"aten::{name}"
    for name in ("copy_", "clone", "contiguous", "reshape", "flatten", "to", "_to_copy", "lift_fresh_copy")
)
FACTORIES = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)
_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp(?:_pybinding)?\(", re.MULTILINE)
_INTERNAL = ("torch.", f"{__name__}.", "contextlib.", "functools.")


class RecordedWork(Protocol):
    """One launch in a recorded graph, as far as the count needs it. `scalars` are (place, value) pairs."""

    @property
    def name(self) -> str: ...
    @property
    def tensors(self) -> Sequence[torch.Tensor]: ...
    @property
    def scalars(self) -> Sequence[tuple[str, Any]]: ...


@dataclass(frozen=True)
class Boundary:
    """Where to look at an engine from outside: what its adaptor hands over.

    `graph_class.replay` launches a graph; `recorded` lists a graph's work; `body_of` gives the Python body of a custom
    operator, or None; `is_host` tells host memory; `outputs` are the buffers that a caller reads after a replay;
    `pools` are the handles of the pools that graphs were recorded into, as the graphs give them.
    """

    graph_class: type
    recorded: Callable[[Any], Iterable[RecordedWork]]
    body_of: Callable[[OpOverload], Callable[..., Any] | None]
    is_host: Callable[[torch.Tensor], bool]
    outputs: Sequence[torch.Tensor]
    pools: Sequence[Any] = ()


class Tally:
    """The running count of one step."""

    def __init__(self, boundary: Boundary) -> None:
        self.boundary = boundary
        self.operations: Counter[str] = Counter()
        self.copies: list[ObservedCopy] = []
        self.needless: list[ObservedCopy] = []
        self.sites: dict[str, str] = {}
        self.launched: list[Any] = []
        self.regions = self.nodes = 0
        self.pool_watch = PoolWatch(boundary.pools)
        self._worked = False
        self.outputs = [memory_of(buffer) for buffer in boundary.outputs]

    def launch(self, graph: Any) -> None:
        if self._worked and self.launched:
            self.regions += 1
        self._worked = False
        self.launched.append(graph)

    def eager(self, name: str, tensors: Sequence[torch.Tensor], layout: torch.memory_format | None = None) -> None:
        self._worked = True
        self._add(name, tensors, layout, None)

    def read_graphs(self) -> None:
        """Add what the launched graphs did, each as often as it was launched."""
        for graph in self.launched:
            for work in self.boundary.recorded(graph):
                self.nodes += 1
                layout = next((value for _, value in work.scalars if isinstance(value, torch.memory_format)), None)
                site = Path(getattr(work, "site", "")).name  # entries of an earlier revision do not keep it
                self._add(work.name, work.tensors, layout, site)

    def place_of(self, name: str, tensors: Sequence[torch.Tensor]) -> Place:
        """Where a copy lands. Only `copy_` writes into memory that was there before."""
        source = tensors[1] if name == "aten::copy_" and len(tensors) > 1 else tensors[0]
        if self.boundary.is_host(source):
            return Place.STAGING
        begin, end = memory_of(tensors[0])
        inside = name == "aten::copy_" and any(low <= begin and end <= high for low, high in self.outputs)
        return Place.OUTPUT if inside else Place.DEVICE

    def _add(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        layout: torch.memory_format | None,
        recorded_at: str | None,
    ) -> None:
        """`recorded_at` is the place of recorded work; None says that the work runs now."""
        if name not in COPIES or not tensors:
            self.operations[name] += 1
            if name not in self.sites:
                self.sites[name] = call_site() if recorded_at is None else recorded_at
            return
        # Bytes of the first tensor: what `copy_` writes, and what the others read.
        site = call_site() if recorded_at is None else recorded_at
        place = self.place_of(name, tensors)
        copy = ObservedCopy(name, tensors[0].nbytes, place, site, recorded_at is not None)
        self.copies.append(copy)
        if name == "aten::clone" and keeps_layout(tensors[0], layout):
            self.needless.append(copy)


class Census(TorchDispatchMode):
    """Passes every eager operator through and tells the tally of those that launch device work."""

    supports_higher_order_operators = True

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally
        self._body_of = functools.cache(tally.boundary.body_of)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled callables run compiled under this mode; without this they would silently run eagerly."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            self._tally.eager(func.name(), tensors_in(args))
            return func(*args, **kwargs)
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        body = self._body_of(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        result = func(*args, **kwargs)
        self._tally.pool_watch.look(call_site)
        given = tensors_in((args, kwargs))
        if launches(func, given, result, self._tally.boundary.is_host):
            self._tally.eager(_traits(func)[0], given, kwargs.get("memory_format"))
        return result


def observe(step: Callable[[], Any], boundary: Boundary) -> Observed:
    """Run `step` once and count what it does. `step` returns a `StepResult`."""
    tally = Tally(boundary)
    with watching_launches(boundary.graph_class, tally.launch), watching_kernels(tally), Census(tally):
        claim = step().claim
    tally.read_graphs()
    return Observed(
        claim=claim,
        launches=len(tally.launched),
        regions=tally.regions,
        nodes=tally.nodes,
        operations=dict(tally.operations),
        copies=tuple(tally.copies),
        needless=tuple(tally.needless),
        sites=tally.sites,
        pool_use=tally.pool_watch.use(),
    )


def watching_launches(graph_class: type, launched: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Call `launched(graph)` before each `graph.replay()`."""

    def noted(graph: Any) -> AbstractContextManager[None]:
        launched(graph)
        return nullcontext()

    return around_launches(graph_class, noted)


@contextmanager
def around_launches(graph_class: type, around: Callable[[Any], AbstractContextManager[Any]]) -> Iterator[None]:
    """Run each `graph.replay()` within `around(graph)`; the class is as before at the end."""
    own = vars(graph_class).get("replay")
    replay: Callable[[Any], None] = graph_class.replay  # type: ignore[attr-defined]

    def launch(graph: Any) -> None:
        with around(graph):
            replay(graph)

    graph_class.replay = launch  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if own is None:
            del graph_class.replay  # type: ignore[attr-defined]
        else:
            graph_class.replay = own  # type: ignore[attr-defined]


@contextmanager
def watching_kernels(tally: Tally) -> Iterator[None]:
    """Count the calls of Inductor's kernels, which are no operators, in the globals of the generated modules."""
    codecache = sys.modules.get("torch._inductor.codecache")
    replaced: list[tuple[Any, str, Any]] = []

    def counting(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def count_and_run(*args: Any, **kwargs: Any) -> Any:
            tally.eager(name, ())
            return kernel(*args, **kwargs)

        return count_and_run

    try:
        for module in list(codecache.PyCodeCache.modules) if codecache is not None else []:
            for name in _kernel_names(module.__file__ or ""):
                kernel = getattr(module, name, None)
                if callable(kernel):
                    replaced.append((module, name, kernel))
                    setattr(module, name, counting(name, kernel))
        yield
    finally:
        for module, name, kernel in replaced:
            setattr(module, name, kernel)


@functools.cache
def _kernel_names(path: str) -> tuple[str, ...]:
    """Each once, however often the file names it: a kernel that is wrapped twice counts twice."""
    return tuple(dict.fromkeys(_KERNEL.findall(Path(path).read_text()))) if path else ()


@functools.cache
def _traits(op: OpOverload) -> tuple[str, bool, bool]:
    """The operator's name, whether it can launch anything at all, and whether it writes an argument."""
    name = op._schema.name
    return name, name not in FACTORIES and torch.Tag.inplace_view not in op.tags, op._schema.is_mutable


def launches(
    op: OpOverload, given: Sequence[torch.Tensor], result: Any, is_host: Callable[[torch.Tensor], bool]
) -> bool:
    """Whether this call did device work: no view, no bare allocation, no bookkeeping, nothing on host memory alone."""
    _, able, writes = _traits(op)
    if not able or (given and all(map(is_host, given))):
        return False
    if writes:
        return True
    made = tensors_in(result)
    if not made:
        return bool(given)  # it read device data; `promote_types` and the like read none
    held = {tensor.untyped_storage().data_ptr() for tensor in given}
    return any(tensor.untyped_storage().data_ptr() not in held for tensor in made)


def keeps_layout(source: torch.Tensor, layout: torch.memory_format | None) -> bool:
    """Whether a clone of `source` is laid out as `source` is, so that nothing but the address changes."""
    if layout in (None, torch.preserve_format):
        span = 1 + sum((size - 1) * stride for size, stride in zip(source.size(), source.stride(), strict=True))
        return span == source.numel()
    return source.is_contiguous(memory_format=layout)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The strided tensors in an argument, in order: itself, or those in its lists, tuples and dicts."""
    found: list[torch.Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of `tensor` and the first one past its last element."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), tensor.data_ptr()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + span * tensor.itemsize


def call_site() -> str:
    """`file:line in function` of the innermost frame outside torch and the count."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if not f"{module}.".startswith(_INTERNAL):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
