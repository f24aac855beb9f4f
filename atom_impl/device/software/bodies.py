"""Python bodies of custom ops, so that a recording can enter them.

A custom op that is replayed as one call runs its Python again and reads live host values: a frozen `splits=1` on a
GPU becomes a fresh `splits=4` on the CPU, and the fault that a recording would have shown is gone. Recording
therefore calls the body itself and logs what it launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

#: The registered bodies. `torch.library.custom_op` keeps its own; only other registrations need to be told here.
BODIES: dict[OpOverload, Callable[..., Any]] = {}


def register_body(op: OpOverload, fn: Callable[..., Any]) -> None:
    """Say that `op` is implemented on the CPU by the Python function `fn`. The latest registration holds."""
    if not isinstance(op, OpOverload):
        raise TypeError(f"register_body takes an overload such as torch.ops.ns.name.default, got {op!r}")
    if not callable(fn):
        raise TypeError(f"the body of {op} must be callable, got {fn!r}")
    BODIES[op] = fn


def body_of(op: OpOverload) -> Callable[..., Any] | None:
    """The Python function behind `op` on the CPU, or None for an op that is compiled code."""
    body = BODIES.get(op)
    if body is not None:
        return body
    definition = torch._library.custom_ops.OPDEFS.get(op._schema.name)
    if definition is None or op._overloadname != "default":
        return None
    return definition._backend_fns.get("cpu") or definition._init_fn
