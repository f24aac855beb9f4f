"""The dispatch mode through which every operator of a session passes.

A region break happens deep inside a dispatch, where the mode stack may not be popped. The mode therefore belongs to the
session: between captures it lets everything through, and a capture that begins inside an operator finds it in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from atom_impl.device.software.bodies import body_of
from atom_impl.device.software.operators import facts_of
from atom_impl.device.software.thread_state import current, state


class RecordingMode(TorchDispatchMode):
    """Hands each operator to the graph that captures on this thread; enters the Python bodies of custom ops."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled callables run compiled under this mode; without this they would silently run eagerly."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        graph = current()
        if any(dispatches_itself(kind) for kind in types):
            return NotImplemented
        if graph is None:
            return _run_eagerly(func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            return graph.recorder.launch(lambda *a: func(*a, **kwargs), args, func.name())
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        body = body_of(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        return graph.recorder.operator(func, args, kwargs)


def _run_eagerly(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Between captures only what is under way is of interest: the next segment would not wait for it."""
    if isinstance(func, OpOverload) and facts_of(func).collective:
        return state.asynchronous.run(func, facts_of(func).name, lambda: func(*args, **kwargs))
    return func(*args, **kwargs)


def dispatches_itself(kind: type) -> bool:
    """Whether a tensor class has its own dispatch, as the result of a functional collective waits in it."""
    handler = getattr(kind, "__torch_dispatch__", torch._C._disabled_torch_dispatch_impl)
    return handler is not torch._C._disabled_torch_dispatch_impl and kind not in (torch.Tensor, torch.nn.Parameter)
