"""Custom operators: what a compiled model calls and no compiler looks into.

Registration used to return silently when the name was taken, so a second, different function of the same name was never
called and nobody noticed. Here it raises. Operators are registered for the CPU as well, so that a laptop can run them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch.library import Library, infer_schema

from atom_impl.device.software.bodies import register_body

AnyFunction = Callable[..., Any]
F = TypeVar("F", bound=AnyFunction)

#: The namespace that the guide names: `aiter.my_op`. A fragment, because AMD's library defines operators in it as well.
aiter_lib = Library("aiter", "FRAGMENT")

#: The attribute that marks a split operator; the spelling is the guide's.
SPLIT_MARK = "spliting_op"


@dataclass(frozen=True)
class RegisteredOp:
    """One operator registered through this module. `name` is qualified: `aiter::my_op`."""

    name: str
    overload: torch._ops.OpOverload
    op_func: AnyFunction
    fake_impl: AnyFunction | None


_registered: dict[str, RegisteredOp] = {}


def registered_ops() -> Mapping[str, RegisteredOp]:
    """Every operator registered so far, by qualified name."""
    return MappingProxyType(_registered)


def direct_register_custom_op(
    op_name: str,
    op_func: AnyFunction,
    mutates_args: Iterable[str],
    fake_impl: AnyFunction | None = None,
    target_lib: Library | None = None,
    dispatch_key: str = "CUDA",
    tags: tuple[torch.Tag, ...] = (),
) -> torch._ops.OpOverload:
    """Register `op_func` as `aiter::op_name` (or in `target_lib`) and return its default overload.

    The schema comes from the annotations. A `dispatch_key` for one device is joined by "CPU"; a composite key stands
    alone. An operator that returns nothing needs no `fake_impl`. Registering the same function again is harmless; a
    different one under a taken name raises ValueError, as does a name in `mutates_args` that is no parameter.
    """
    lib = target_lib if target_lib is not None else aiter_lib
    name = f"{lib.ns}::{op_name}"
    exists = bool(torch._C._jit_get_schemas_for_operator(name))
    known = _registered.get(name) if exists else None  # a library that was dropped took its operators with it
    if known is not None:
        if _same_function(known.op_func, op_func):
            return known.overload
        raise ValueError(
            f"operator {name} is already registered for {_describe(known.op_func)}; "
            f"{_describe(op_func)} needs another name"
        )
    if exists:
        raise ValueError(f"operator {name} already exists in another library; give {_describe(op_func)} another name")
    fake = fake_impl if fake_impl is not None else _fake_of_void(op_func)
    lib.define(op_name + infer_schema(op_func, mutates_args=list(mutates_args)), tags=tags)
    for key in _dispatch_keys(dispatch_key):
        lib.impl(op_name, op_func, dispatch_key=key)
    if fake is not None:
        lib._register_fake(op_name, fake)
    overload = _overload(lib.ns, op_name)
    register_body(overload, op_func)
    _registered[name] = RegisteredOp(name, overload, op_func, fake_impl)
    return overload


def mark_spliting_op(
    is_custom: bool, gen_fake: AnyFunction | None = None, mutates_args: Iterable[str] = ()
) -> Callable[[F], F]:
    """Mark a function as a boundary between compiled pieces. It is not a graph break: that is `eager_region`'s to say.

    With `is_custom` the function is also registered as `aiter::<its name>` with the fake `gen_fake`, and the operator
    carries the mark. Returns the function itself.
    """

    def mark(func: F) -> F:
        if is_custom:
            overload = direct_register_custom_op(func.__name__, func, mutates_args, gen_fake)
            setattr(overload, SPLIT_MARK, True)
            setattr(overload.overloadpacket, SPLIT_MARK, True)
        setattr(func, SPLIT_MARK, True)
        return func

    return mark


def _overload(namespace: str, op_name: str) -> torch._ops.OpOverload:
    overload = getattr(getattr(torch.ops, namespace), op_name).default
    assert isinstance(overload, torch._ops.OpOverload)
    return overload


def _dispatch_keys(dispatch_key: str) -> tuple[str, ...]:
    if dispatch_key == "CPU" or dispatch_key.startswith("Composite"):
        return (dispatch_key,)
    return (dispatch_key, "CPU")


def _fake_of_void(op_func: AnyFunction) -> AnyFunction | None:
    """A fake for an operator that returns nothing; any other needs one that knows its shapes."""
    if getattr(op_func, "__annotations__", {}).get("return", ...) in (None, "None"):
        return lambda *args, **kwargs: None
    return None


def _same_function(first: AnyFunction, second: AnyFunction) -> bool:
    """Identity, or one module-level function executed twice, as `importlib.reload` does."""
    if first is second:
        return True
    code = getattr(first, "__code__", None)
    return (
        code is not None
        and code == getattr(second, "__code__", None)
        and not code.co_freevars
        and first.__defaults__ == second.__defaults__  # type: ignore[attr-defined]
        and first.__globals__ is second.__globals__  # type: ignore[attr-defined]
    )


def _describe(func: AnyFunction) -> str:
    name = f"{getattr(func, '__module__', '?')}.{getattr(func, '__qualname__', repr(func))}"
    code = getattr(func, "__code__", None)
    return name if code is None else f"{name} (line {code.co_firstlineno})"
