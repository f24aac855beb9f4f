"""A hash that is the same in every process and on every day for the same settings.

`str(settings)` is not one: a function prints its address and a set its order of the day, so that caches missed for no
reason; and two settings that print alike hit each other's code.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch


def stable_hash(value: object) -> str:
    """SHA-256 hex digest of plain data: nested mappings, lists, sets, numbers, strings, dtypes and functions.

    A function counts by its name and source. Anything without a stable spelling raises `ValueError` and is named.
    """
    text = json.dumps(_plain(value, "value"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any, path: str) -> Any:
    """`value` as JSON data in which every entry carries its type, so that 1, True, 1.0 and "1" stay four things."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return [type(value).__name__, repr(value)]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value)]
    if isinstance(value, Mapping):
        return ["map", sorted([_plain(key, path), _plain(item, f"{path}[{key!r}]")] for key, item in value.items())]
    if isinstance(value, Set):
        return ["set", sorted(_plain(item, path) for item in value)]
    if isinstance(value, (list, tuple)):
        return ["list", [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]]
    if callable(getattr(value, "uuid", None)):  # torch's CustomGraphPass names its own version
        return ["uuid", type(value).__qualname__, _plain(value.uuid(), path)]
    if inspect.isroutine(value) or inspect.isclass(value):
        return ["code", f"{value.__module__}.{value.__qualname__}", _source(value, path)]
    raise ValueError(
        f"{path} = {value!r}: has no spelling that is the same in every process; "
        "use plain data, a function defined in a file, or an object with a uuid() method"
    )


def _source(code: Callable[..., object], path: str) -> str:
    if inspect.isbuiltin(code):
        return "builtin"
    if getattr(code, "__closure__", None):
        raise ValueError(
            f"{path} = {code!r}: closes over values that its source does not show; pass them in another way"
        )
    try:
        return inspect.getsource(code)
    except (OSError, TypeError) as error:
        raise ValueError(f"{path} = {code!r}: its source cannot be read ({error}); define it in a file") from error
