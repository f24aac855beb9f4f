"""The few places where torch's releases differ for the compile stack, in one file.

Version tests strewn over a code base age badly: one of them is always forgotten. Everything that asks "which torch?"
is here.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from types import CodeType
from typing import Any

import torch


def torch_release() -> tuple[int, int]:
    """Major and minor release of the installed torch; (2, 13) for "2.13.0+cpu"."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


def has_standalone_compile() -> bool:
    """Whether `torch._inductor.standalone_compile` gives artefacts that can be saved: 2.8 and later."""
    return torch_release() >= (2, 8) and hasattr(importlib.import_module("torch._inductor"), "standalone_compile")


def cache_entries(code: CodeType) -> list[Any]:
    """Dynamo's compiled entries of a code object, newest first; each has `code` and `guard_manager`."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    return list(_debug_get_cache_entry_list(code))


def own_cache_keys(operators: str) -> AbstractContextManager[Any]:
    """Keep Inductor's own caches apart from other users' within the block, and from those of other operators.

    Their keys do not say that sizes 0 and 1 were left open, so an entry of an ordinary trace would be found, and with
    it the assumption that every size is at least 2. Nor do they hold more of a custom operator than its name:
    `operators` is what `operators_digest` says of the graph.
    """
    config = importlib.import_module("torch.compiler.config")
    if not hasattr(config, "cache_key_tag"):
        return nullcontext()
    tag = f"{config.cache_key_tag}sizes-0-and-1 {operators}"
    patched: AbstractContextManager[Any] = config.patch(cache_key_tag=tag)
    return patched


def symbol_hint(shape_env: Any, symbol: Any) -> Any:
    """The size that a symbol was traced with, or None. torch 2.13 renamed the table."""
    table = getattr(shape_env, "backed_var_to_val", None)
    return (shape_env.var_to_val if table is None else table).get(symbol)


def size_guards() -> list[Any]:
    """Every assumption about sizes made so far in the current trace, each with `expr` and `sloc`; none outside one."""
    context = torch._guards.TracingContext.try_get()
    mode = None if context is None else context.fake_mode
    return [] if mode is None or mode.shape_env is None else list(mode.shape_env.guards)


def guard_kind(guard: Any) -> str:
    """The name of Dynamo's method that checks a guard, such as "CONSTANT_MATCH"."""
    return str(guard.inner_create_fn().__name__)
