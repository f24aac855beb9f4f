"""Which dimensions of a model's arguments vary from call to call.

Upstream compared annotations with the class `torch.Tensor`, so in a module with postponed annotations every one was a
string, none was found, and the error blamed the model.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import torch

INTERMEDIATE = "IntermediateTensors"


def inferred_dims(cls: type[torch.nn.Module]) -> dict[str, list[int]]:
    """Dimension 0 of every parameter annotated as a tensor, an optional one, or `IntermediateTensors`; else
    ValueError.
    """
    hints = _hints(cls.forward)
    names = list(inspect.signature(cls.forward).parameters)[1:]
    dims = {name: [0] for name in names if _is_tensor(hints.get(name))}
    if not dims:
        raise ValueError(
            f"No dynamic dimensions found in the forward method of {cls}. Please provide dynamic_arg_dims explicitly."
        )
    return dims


def checked_dims(cls: type[torch.nn.Module], dims: Mapping[str, int | Sequence[int]]) -> dict[str, list[int]]:
    """The user's choice as lists. An argument that forward does not have raises ValueError."""
    names = list(inspect.signature(cls.forward).parameters)[1:]
    for name in dims:
        if name not in names:
            raise ValueError(f"Argument {name} not found in the forward method of {cls}; it has {', '.join(names)}")
    return {name: [given] if isinstance(given, int) else list(given) for name, given in dims.items()}


def _hints(forward: Any) -> dict[str, Any]:
    """Annotations as objects, those that cannot be resolved left as text."""
    try:
        return typing.get_type_hints(forward)
    except (NameError, AttributeError, TypeError):
        return dict(getattr(forward, "__annotations__", {}))


def _is_tensor(hint: Any) -> bool:
    if isinstance(hint, str):
        parts = {part.strip() for part in hint.removeprefix("Optional[").removesuffix("]").split("|")}
        return bool(parts & {"torch.Tensor", "Tensor"}) and parts <= {"torch.Tensor", "Tensor", "None"}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = set(typing.get_args(hint)) - {type(None)}
        return len(kinds) == 1 and _is_tensor(kinds.pop())
    return hint is torch.Tensor or getattr(hint, "__name__", "") == INTERMEDIATE
