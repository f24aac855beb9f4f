"""Small, exact operations on the graphs of pieces.

Inductor returns a list from a loaded artefact and a tensor from the compile that made it, for one and the same piece;
a piece is therefore given one form, a flat tuple, before any compiler sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses import FakeTensor


def return_tuple(graph: torch.fx.GraphModule) -> bool:
    """Make `graph` return a flat tuple, in place. Returns whether it did so already."""
    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    value = output.args[0]
    if isinstance(value, (tuple, list)):
        return True
    output.args = ((value,),)
    graph.recompile()
    return False


def symbol_ranges() -> dict[Any, Any]:
    """The range of every symbol of the current trace."""
    mode = torch._guards.TracingContext.get().fake_mode
    return {} if mode is None or mode.shape_env is None else dict(mode.shape_env.var_to_range)


def fake_inputs(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """The inputs of a graph that Dynamo has just traced, as fake tensors and symbolic integers of the current fake
    mode.

    Dynamo traces in one fake mode and hands over with another, so what the nodes carry cannot be used; the sizes can.
    """
    context = torch._guards.TracingContext.get()
    mode = context.fake_mode
    if mode is None:
        raise RuntimeError("a graph can be split only within the torch.compile call that traced it")
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    fakes = []
    for node, value in zip(placeholders, example_inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            fakes.append(node.meta.get("example_value", value))
        elif isinstance(value, FakeTensor):
            fakes.append(value)
        else:
            symbolic = context.tensor_to_context.get(value)
            source = getattr(symbolic, "tensor_source", None)
            fakes.append(mode.from_tensor(value, symbolic_context=symbolic, source=source))
    return fakes


def is_fixed(size: Any) -> bool:
    """Whether a size of a fake tensor is a number, and not a symbol."""
    return not isinstance(size, torch.SymInt)
