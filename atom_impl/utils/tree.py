"""Walks over nested results and metadata: tuples, lists, dicts and dataclasses, with a readable path to every leaf.

A stale address in one leaf of a nested dict is the fault that a check of the outermost tensors misses.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

Getter = Callable[[Any], Any]


def _itself(value: Any) -> Any:
    return value


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


def values(value: Any) -> Iterator[Any]:
    """Every leaf without its path, in the same order: for what runs in every step."""
    if isinstance(value, dict):
        value = value.values()
    elif _is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif not isinstance(value, (tuple, list)):
        yield value
        return
    for item in value:
        yield from values(item)


def places(value: Any, path: str = "", get: Getter = _itself) -> Iterator[tuple[str, Getter, torch.Tensor]]:
    """The tensor leaves of `value` with their paths, each with a function that finds it again in another `value`."""
    if isinstance(value, torch.Tensor):
        yield path, get, value
    elif isinstance(value, dict):
        for key in value:
            yield from places(value[key], f"{path}[{key!r}]", _after(get, operator.itemgetter(key)))
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from places(item, f"{path}[{index}]", _after(get, operator.itemgetter(index)))
    elif _is_dataclass(value):
        for field in dataclasses.fields(value):
            found = getattr(value, field.name)
            yield from places(found, f"{path}.{field.name}", _after(get, operator.attrgetter(field.name)))


def _after(outer: Getter, inner: Getter) -> Getter:
    return inner if outer is _itself else lambda value: inner(outer(value))


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
