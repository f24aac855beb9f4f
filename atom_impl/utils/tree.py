"""Walks over nested results and metadata: tuples, lists, dicts and dataclasses, with a readable path to every leaf.

A stale address in one leaf of a nested dict is the fault that a check of the outermost tensors misses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its path, in a stable order. A leaf is whatever is no tuple, list, dict or dataclass instance."""
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    elif _is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield path, value


def tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensor leaves of `value` with their paths."""
    return ((path, leaf) for path, leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` rebuilt with `function` applied to every leaf; containers keep their types."""
    if isinstance(value, dict):
        return type(value)((key, map_leaves(function, item)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(function, item) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(function, item) for item in value)
    if _is_dataclass(value):
        fields = {field.name: map_leaves(function, getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return function(value)


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
