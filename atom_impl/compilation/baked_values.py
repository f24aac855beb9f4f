"""Attributes that a trace turned into constants.

`self.scale` read in a traced forward is a number in the compiled code. Set to another value later, it changes
nothing, and nobody is told. Dynamo knows which values it read; they are compared on every call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from atom_impl.compilation.torch_compat import guard_kind

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

#: Dynamo's names for guards on a value. Other guards watch a type, a length or a tensor.
_BY_VALUE = {"CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH", "ID_MATCH"}


class BakedValues:
    """The plain values that Dynamo's guards watch, outside the call's arguments.

    An attribute that lives in its owner's `__dict__` is read there: through `nn.Module.__getattribute__` it costs
    four times as much, and there are hundreds.
    """

    def __init__(self, guards: Iterable[Any], scope: Mapping[str, Any], arguments: Iterable[str]) -> None:
        """`guards` are Dynamo's of the trace, `scope` holds "L" and "G", `arguments` the call's own names."""
        skipped = {f"L[{name!r}]" for name in arguments}
        attributes: dict[str, tuple[Any, str, Any, str]] = {}
        items: dict[str, tuple[Any, Any, Any, str]] = {}
        for guard in guards:
            path = guard.name
            found = None if path in skipped or guard_kind(guard) not in _BY_VALUE else _owner(path, scope)
            if found is None:
                continue
            owner, key, is_attribute = found
            value = getattr(owner, key, _GONE) if is_attribute else _item(owner, key)
            if not _is_plain(value):
                continue
            held = getattr(owner, "__dict__", None)
            if is_attribute and (not isinstance(held, dict) or key not in held):
                attributes[path] = (owner, key, value, path)
            else:
                items[path] = (held if is_attribute else owner, key, value, path)
        self._attributes = list(attributes.values())
        self._fields = [entry for entry in items.values() if type(entry[0]) is dict]
        self._items = [entry for entry in items.values() if type(entry[0]) is not dict]

    def __len__(self) -> int:
        return len(self._attributes) + len(self._fields) + len(self._items)

    def changed(self) -> str | None:
        """What has another value than when it was traced, as a sentence; None when nothing has."""
        for held, key, value, path in self._fields:
            now = held.get(key, _GONE)
            if now is not value and not _equal(now, value):
                return _sentence(path, value, now)
        for owner, name, value, path in self._attributes:
            now = getattr(owner, name, _GONE)
            if now is not value and not _equal(now, value):
                return _sentence(path, value, now)
        for owner, key, value, path in self._items:
            now = _item(owner, key)
            if now is not value and not _equal(now, value):
                return _sentence(path, value, now)
        return None


class _Gone:
    def __repr__(self) -> str:
        return "gone"


_GONE = _Gone()


def _item(owner: Any, key: Any) -> Any:
    try:
        return owner[key]
    except (KeyError, IndexError, TypeError):
        return _GONE


def _equal(now: Any, value: Any) -> bool:
    """Equal and of one type; two NaNs are equal here."""
    return type(now) is type(value) and (now == value or (now != now and value != value))


def _sentence(path: str, value: Any, now: Any) -> str:
    return f"{path} was {value!r} when the model was traced, which is part of the compiled code, and is {now!r} now"


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _owner(path: str, scope: Mapping[str, Any]) -> tuple[Any, Any, bool] | None:
    """The object that holds the value at `path`, with its attribute name or key.

    None for a path that is no plain chain.
    """
    try:
        tree = ast.parse(path, mode="eval").body
        if isinstance(tree, ast.Attribute):
            return _walk(tree.value, scope), tree.attr, True
        if isinstance(tree, ast.Subscript):
            return _walk(tree.value, scope), ast.literal_eval(tree.slice), False
    except (SyntaxError, ValueError, KeyError, IndexError, AttributeError, TypeError):
        return None
    return None


def _walk(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    """The object at a chain of attributes and items that starts at "L" or "G"."""
    if isinstance(node, ast.Name):
        return scope[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(_walk(node.value, scope), node.attr)
    if isinstance(node, ast.Subscript):
        return _walk(node.value, scope)[ast.literal_eval(node.slice)]
    raise ValueError("not a chain of attributes and items")
