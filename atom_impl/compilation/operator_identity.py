"""What generated code takes from the operators that it calls, beside their names.

A name stayed while its `mutates_args` was corrected, or its fake, or a Triton kernel in a file that no trace went
through: the next start loaded the code of the old one, with a write lost or a stride that no longer held. No cache
below this one looks any closer, so both Inductor's keys and ours are told.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from atom_impl.utils.custom_register import registered_ops

#: Namespaces whose operators come with torch, and so with the toolchain's identity.
_TORCHS_OWN = frozenset({"aten", "prim", "prims"})
#: Modules whose functions do.
_TORCHS_MODULES = frozenset({"torch", "builtins", "operator", "_operator", "math"})
#: Kernels under these keys are traced into by AOTAutograd, so their bodies become part of the piece.
_TRACED_KEYS = ("CompositeImplicitAutograd", "Autograd", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA")
#: Stands for a body that nobody can read: equal within this process and in no other.
_THIS_PROCESS = f"known to one process: {secrets.token_hex(16)}"
_NESTED = 8


def operator_facts(target: Any) -> list[str]:
    """What code that calls `target` depends on beside its name, apart from the layout of what it returns.

    Empty for what comes with torch. An operator: schema and tags of each overload, and the source of what a compiler
    inlines of it. A function: its source. A source that cannot be read makes facts that no other process has.
    """
    if isinstance(target, torch._ops.OpOverloadPacket):
        overloads = [getattr(target, name) for name in sorted(target.overloads())]
        return [fact for overload in overloads for fact in operator_facts(overload)]
    if isinstance(target, torch._ops.OpOverload):
        return [] if target.namespace in _TORCHS_OWN else list(_overload_facts(target))
    if inspect.isfunction(target) and (target.__module__ or "").partition(".")[0] not in _TORCHS_MODULES:
        return [_source(target)]
    return []


def triton_facts(kernel_index: int) -> list[str]:
    """A user's Triton kernel that is inlined in a graph: its source with all it refers to, and what tunes it."""
    kernel: Any = _side_table().get_kernel(kernel_index)
    facts: list[str] = []
    for _ in range(_NESTED):
        if hasattr(kernel, "src"):
            return [*facts, str(getattr(kernel, "cache_key", None) or kernel.src)]
        configs = [str(config) for config in getattr(kernel, "configs", ())]
        rules = [f"{name} {_source(rule)}" for name, rule in sorted(getattr(kernel, "values", {}).items())]
        facts.append(f"{type(kernel).__name__} {configs} {rules}")
        kernel = getattr(kernel, "fn", None)
    return [*facts, _THIS_PROCESS]


def triton_constants(constants_index: int) -> dict[str, Any]:
    """The arguments of a user's Triton kernel that are no part of the graph."""
    return dict(_side_table().get_constant_args(constants_index))


def _side_table() -> Any:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table


def _overload_facts(overload: torch._ops.OpOverload) -> Iterator[str]:
    yield str(overload._schema)
    yield f"tags {sorted(map(str, overload.tags))}"
    for kind, body in _inlined(overload):
        yield f"{kind} {_THIS_PROCESS if body is None else _source(body)}"


def _inlined(overload: torch._ops.OpOverload) -> Iterator[tuple[str, Callable[..., Any] | None]]:
    """Every body of an operator that a compiler looks into, with the way in which it does; None where torch keeps it
    out of sight.
    """
    name = overload.name().removesuffix(".default")
    definition = _definition(name)
    for key in _TRACED_KEYS:
        in_python = overload.py_kernels.get(getattr(torch._C.DispatchKey, key))
        if in_python is not None:
            yield key, in_python
        elif torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key):
            yield from ((key, body) for body in _bodies(name, definition))
    for mode, body in _dispatch_rules(name).items():
        yield mode.__name__, body if definition is None else definition._abstract_fn
    for module, table, kind in (("lowering", "lowerings", "lowering"), ("decomposition", "decompositions", "inlined")):
        loaded = sys.modules.get(f"torch._inductor.{module}")
        if loaded is not None and overload in getattr(loaded, table) and overload not in _fallbacks():
            yield kind, getattr(loaded, table)[overload]


def _bodies(name: str, definition: Any) -> list[Callable[..., Any] | None]:
    """What runs under a key that is traced into. torch's own wrapper of a `custom_op` calls the user's parts."""
    if definition is not None:
        parts = (definition._backward_fn, definition._setup_context_fn)
        return [part for part in parts if part is not None]
    known = registered_ops().get(name)
    return [None if known is None else known.op_func]


def _definition(name: str) -> Any:
    """The `torch.library.custom_op` or `triton_op` behind an operator, if it is one."""
    from torch._library.custom_ops import OPDEFS

    return OPDEFS.get(name)


def _dispatch_rules(name: str) -> dict[type, Callable[..., Any]]:
    """Rules for modes and tensor subclasses; `triton_op` inlines its kernels by one."""
    from torch._library.simple_registry import singleton

    entry = singleton._data.get(name)
    rules = None if entry is None else getattr(entry, "torch_dispatch_rules", None)
    return {} if rules is None else dict(rules._data)


def _fallbacks() -> Any:
    """Operators that Inductor calls as they are. It lists one when it first meets it, so being listed says nothing."""
    loaded = sys.modules.get("torch._inductor.lowering")
    return () if loaded is None else loaded.fallbacks


def _source(function: Any) -> str:
    """Name and source file of a function, the file whole: what it calls is mostly beside it."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None or getattr(function, "__closure__", None):
        return _THIS_PROCESS
    try:
        content = Path(code.co_filename).read_bytes()
    except OSError:
        return _THIS_PROCESS
    return f"{function.__qualname__} {hashlib.sha256(content).hexdigest()}"
