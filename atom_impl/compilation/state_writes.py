"""Writes to a module's own state inside a traced forward.

A recorded graph replays such a write on every step, also for padding and for the warm-up that the recording itself
was, and a rebound buffer is another tensor than the one that was recorded. Upstream saw only the rebinding, by a word
in the bytecode, and needed an optional package to say so.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

import torch
import torch.fx

_IN_PLACE_OPERATORS = {
    getattr(operator, f"i{name}")
    for name in (
        *("add", "and", "floordiv", "lshift", "matmul", "mod", "mul"),
        *("or", "pow", "rshift", "sub", "truediv", "xor"),
    )
} | {operator.setitem, operator.delitem}

ADVICE = (
    "Assigning / modifying buffers of nn.Module during forward pass is not allowed when using cudagraph inside the "
    "compiler because it will cause silent errors: keep such state outside the module, written by an opaque operator"
)


def rebound_state(code: CodeType, module: torch.nn.Module) -> str | None:
    """What compiled bytecode assigns on `module` or a part of it, as a sentence; None when it assigns nothing.

    Dynamo writes attributes back through `update` of a `__dict__`, after the graph has run.
    """
    if "update" not in code.co_names:
        return None
    buffers = {name.rpartition(".")[2] for name, _ in module.named_buffers()}
    named = sorted(buffers & {const for const in code.co_consts if isinstance(const, str)})
    what = f"a buffer ({' or '.join(named)})" if named else "an attribute"
    return f"{what} of {type(module).__name__}, or of a part of it, is assigned in forward"


def written_state(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], module: torch.nn.Module) -> list[str]:
    """Sentences naming every parameter or buffer of `module` that `graph` changes in place, with the line that does."""
    names = {id(tensor): name for name, tensor in _state(module)}
    storages: dict[int, str] = {}
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, example_inputs, strict=True):
        fake = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and isinstance(fake, torch.Tensor) and id(value) in names:
            storages[_storage(fake)] = names[id(value)]
    found = []
    for node in graph.graph.nodes:
        for argument in _written(node):
            fake = argument.meta.get("example_value")
            name = storages.get(_storage(fake)) if isinstance(fake, torch.Tensor) else None
            if name is not None:
                found.append(f"{name} is changed by {node.format_node()}{_site(node)}")
    return found


def _state(module: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from module.named_buffers(remove_duplicate=False)
    yield from module.named_parameters(remove_duplicate=False)


def _storage(fake: torch.Tensor) -> int:
    """Views share it, in fake tensors as in real ones."""
    return fake.untyped_storage()._cdata


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose tensors `node` writes to."""
    if node.op == "call_method":
        return _nodes(node.args[:1]) if _is_in_place(str(node.target)) else []
    if node.op != "call_function":
        return []
    written = _nodes([node.kwargs.get("out")])
    if node.target in _IN_PLACE_OPERATORS:
        return written + _nodes(node.args[:1])
    if isinstance(node.target, torch._ops.OpOverload):
        return written + _by_schema(node, node.target)
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return written + _by_schema(node, getattr(node.target, node.target.overloads()[0]))
    if _is_in_place(getattr(node.target, "__name__", "")):
        return written + _nodes(node.args[:1])
    return written + (_nodes(node.args[:1]) if node.kwargs.get("inplace") is True else [])


def _is_in_place(name: str) -> bool:
    """torch's rule for names of operations: `add_` writes to its first argument, `__add__` does not."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _by_schema(node: torch.fx.Node, overload: torch._ops.OpOverload) -> list[torch.fx.Node]:
    written = []
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            written += _nodes([value])
    return written


def _nodes(values: Iterable[Any]) -> list[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    for value in values:
        if isinstance(value, torch.fx.Node):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _nodes(value)
    return found


def _site(node: torch.fx.Node) -> str:
    """The last user line of the node's stack trace, as far as Dynamo kept one."""
    lines = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip()]
    return f", at {' '.join(lines[-2:])}" if lines else ""
