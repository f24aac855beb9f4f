"""Collectives that a program has begun and not waited for.

On a GPU an asynchronous collective runs on a stream of its own, and waiting for it is what joins that stream again. A
segment that ends before the wait cannot be captured, and a wait on the far side of a region break joins nothing. On a
CPU the result is simply there, and the program that forgot to wait passes every test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from atom_impl.device.base import CaptureError
from atom_impl.device.software.operators import tensors_in
from atom_impl.device.software.sites import call_site

#: Functional collectives that start nothing: they wait, or wrap what others started.
WAIT = "_c10d_functional::wait_tensor"
_STARTS_NOTHING = frozenset((WAIT, "_c10d_functional::_wrap_tensor_autograd"))


class _Begun(NamedTuple):
    name: str
    site: str


class Asynchronous:
    """The collectives under way of one session, by what the program has to wait on: a handle, or a tensor's storage."""

    def __init__(self) -> None:
        self._begun: dict[int, _Begun] = {}
        self._handles: list[Any] = []  # a handle lost to Python while C++ still holds it would wait for ever

    def run(self, op: OpOverload, name: str, launch: Callable[[], Any]) -> Any:
        """Run one operator of a collective namespace through `launch`; its work is under way until it is waited for."""
        result = launch()
        if name == WAIT:
            self._waited(_address(result))
        if name in _STARTS_NOTHING:
            return result
        begun = _Begun(name, call_site())
        if op.namespace == "c10d":
            return self._with_handle(result, begun)
        for tensor in tensors_in(result):
            self._begun[_address(tensor)] = begun
        return result

    def forgotten(self, where: str) -> CaptureError | None:
        """The error for what is still under way at the end of `where`; it is then forgotten."""
        begun = list(self._begun.values())
        self._begun.clear()
        if not begun:
            return None
        first, others = begun[0], f" (and {len(begun) - 1} more)" if len(begun) > 1 else ""
        return CaptureError(
            f"{first.name} at {first.site}{others} is not waited for when its {where} ends: what runs next would not "
            "wait for it, and a graph cannot end with work under way; before that, call wait() on the work, or use the "
            "functional collective's result"
        )

    def _with_handle(self, result: Any, begun: _Begun) -> Any:
        """`result` with its work, the last of what a c10d operator returns, behind a handle that tells us of waits."""
        several = isinstance(result, (tuple, list))
        work = torch._C._distributed_c10d.Work.unbox(result[-1] if several else result)
        handle: Any = _handle_class()(work, lambda: self._waited(id(handle)))
        self._handles.append(handle)
        self._begun[id(handle)] = begun
        return (*result[:-1], handle.boxed()) if several else handle.boxed()

    def _waited(self, key: int) -> None:
        self._begun.pop(key, None)


def run_to_end(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run a collective and wait for it, as one launch: what a replay does."""
    result = op(*args, **kwargs)
    if op.namespace == "c10d":
        several = isinstance(result, (tuple, list))
        torch._C._distributed_c10d.Work.unbox(result[-1] if several else result).wait()
        return result
    for tensor in tensors_in(result):
        torch.ops._c10d_functional.wait_tensor(tensor)
    return result


def starts_nothing(name: str) -> bool:
    """Whether a collective operator only waits for work, or wraps its result."""
    return name in _STARTS_NOTHING


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


_classes: list[type] = []


def _handle_class() -> type:
    """A `Work` that says when it is waited for. Made on first use: torch may be built without distributed."""
    if not _classes:

        class Handle(torch._C._distributed_c10d.Work):
            def __init__(self, work: Any, waited: Callable[[], None]) -> None:
                super().__init__()
                self._work, self._tell = work, waited

            def wait(self, timeout: Any = None) -> bool:
                self._tell()
                return bool(self._work.wait() if timeout is None else self._work.wait(timeout))

            def is_completed(self) -> bool:
                return bool(self._work.is_completed())

            def get_future(self) -> Any:
                return self._work.get_future()

        _classes.append(Handle)
    return _classes[0]
