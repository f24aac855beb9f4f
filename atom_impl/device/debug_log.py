"""The operator calls of one segment, kept so that they can be made again.

A segment is the stretch of a forward between two regions, so its Python cannot be run again by itself; its operator
calls can. Each keeps the very tensors it had: nothing is freed, nothing shares memory, nothing moves.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from atom_impl.device.base import CaptureError
from atom_impl.device.software.asynchronous import run_to_end, starts_nothing
from atom_impl.device.software.bodies import BODIES
from atom_impl.device.software.dispatch import dispatches_itself
from atom_impl.device.software.host import is_host
from atom_impl.device.software.operators import facts_of, tensors_in
from atom_impl.device.software.sites import call_site

_READS_ON_THE_HOST = frozenset(("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"))


class _Capturing(threading.local):
    log: CallLog | None = None


capturing = _Capturing()


@dataclass(slots=True)
class _Call:
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[torch.Tensor | None]  # where each tensor it returns belongs; None for one that is an argument
    name: str


class CallLog:
    """Calls in order, and what the memory that they wrote held before."""

    def __init__(self, device_type: str) -> None:
        self.calls: list[_Call] = []
        self._device_type = device_type
        self._made: set[int] = set()  # storages that a call of this log made
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._inside: str | None = None  # the operator that runs
        self._calls_inside = 0

    def operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `op`, and log it unless it was a view, or a region that broke the segment."""
        name = str(op) if not isinstance(op, OpOverload) else facts_of(op).name
        if name in _READS_ON_THE_HOST and any(map(self._is_on_the_device, tensors_in(list(args)))):
            raise CaptureError(f"{name} at {call_site()} reads device data on the host, which a graph cannot record")
        if not isinstance(op, OpOverload):
            return self._make(op, args, kwargs, name, [])
        facts = facts_of(op)
        written = facts.written_tensors(args, kwargs)
        if starts_nothing(name):
            return op(*args, **kwargs)
        if not facts.collective:
            return self._make(op, args, kwargs, name, written)
        written = list(tensors_in(args)) if op.namespace == "c10d" else written  # c10d's declare no writes
        return self._make(functools.partial(run_to_end, op), args, kwargs, name, written)

    def kernel(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, written: Iterable[int]
    ) -> Any:
        """Run one of Inductor's kernels and log it, as one call. `written`: the positions of what it may write.

        The mode that logs is on here, and must see neither the copies below nor what a launch asks of torch.
        """
        changed = [t for at in written for t in tensors_in(args[at])]
        capturing.log = None
        try:
            self._remember(changed)
            result = fn(*args, **kwargs)
        finally:
            capturing.log = self
        return self._add(fn, args, kwargs, name, changed, result)

    def check_can_end(self) -> None:
        """Raise for a region in the middle of an operator, whose calls before it would be lost."""
        if self._inside is not None and self._calls_inside:
            raise CaptureError(
                f"{self._inside} breaks the segment after {self._calls_inside} calls of its own body; debug replay "
                "needs the region around the whole body: apply eager_region outermost"
            )

    def undo(self) -> None:
        """Give outside memory the bytes that it had: a capture computes nothing."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)
        self._before.clear()

    def run(self) -> None:
        """Make every call again; what it returns goes where its first result lay."""
        for call in self.calls:
            returned = list(tensors_in(call.fn(*call.args, **call.kwargs)))
            if len(returned) != len(call.results):
                raise RuntimeError(
                    f"{call.name} returned {len(returned)} tensors, and {len(call.results)} when recorded"
                )
            for result, place in zip(returned, call.results, strict=True):
                if place is not None:
                    _put(result, place, call.name)

    def _make(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        written: list[torch.Tensor],
    ) -> Any:
        self._remember(written)
        self._inside, self._calls_inside = name, 0
        body = BODIES.get(fn) if isinstance(fn, OpOverload) else None
        try:
            with _CountingMode(self) if body is not None else nullcontext():
                result = (body or fn)(*args, **kwargs)
        finally:
            self._inside = None
        if capturing.log is not self:  # a region, which the session replays by itself
            return result
        return self._add(fn, args, kwargs, name, written, result)

    def _remember(self, written: list[torch.Tensor]) -> None:
        self._before += [(t, t.clone()) for t in written if t.untyped_storage().data_ptr() not in self._made]

    def _add(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        written: list[torch.Tensor],
        result: Any,
    ) -> Any:
        given = {t.untyped_storage().data_ptr() for t in tensors_in([*args, *kwargs.values()]) if t.numel()}
        results = list(tensors_in(result))
        made = [None if t.untyped_storage().data_ptr() in given else t for t in results]
        self._made |= {t.untyped_storage().data_ptr() for t in made if t is not None}
        if written or any(t is not None for t in made):
            self.calls.append(_Call(fn, _rebuilt(args), _rebuilt(kwargs), made, name))
        return result

    def _is_on_the_device(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._device_type and not is_host(tensor.untyped_storage())

    def count_inside(self) -> None:
        self._calls_inside += 1


class LoggingMode(TorchDispatchMode):
    """Hands every operator of a session to the log that is open on this thread."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else compiled callables silently run eagerly under a mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        log = capturing.log
        if log is None:
            return func(*args, **(kwargs or {}))
        if any(map(dispatches_itself, types)):
            return NotImplemented
        return log.operator(func, args, kwargs or {})


class _CountingMode(TorchDispatchMode):
    """Counts what an operator's Python body calls."""

    def __init__(self, log: CallLog) -> None:
        super().__init__()
        self._log = log

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if capturing.log is self._log:
            self._log.count_inside()
        return func(*args, **(kwargs or {}))


def _put(result: torch.Tensor, place: torch.Tensor, name: str) -> None:
    if result.shape != place.shape or result.dtype != place.dtype:
        raise RuntimeError(
            f"{name} returned {list(result.shape)} {result.dtype}, and {list(place.shape)} {place.dtype} when recorded"
        )
    place.copy_(result)


def _rebuilt(value: Any) -> Any:
    """Containers of their own, because their owner may change them afterwards."""
    if type(value) in (list, tuple):
        return type(value)(_rebuilt(item) for item in value)
    if type(value) is dict:
        return {key: _rebuilt(item) for key, item in value.items()}
    return value
