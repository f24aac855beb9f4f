"""What a piece is called with, taken from what Dynamo knew when it traced the graph.

Running the split graph once more on fake inputs only to learn the shapes between its parts took a second of each start
of a model of thirty layers, on a GPU as on a CPU, and its result was known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses import FakeTensor, FakeTensorMode

#: Operations that give a tensor other sizes in place: what Dynamo noted of it is then its last form, not each one.
RESHAPE_IN_PLACE = frozenset(
    {
        "as_strided_",
        "detach_",
        "rename_",
        "resize_",
        "resize_as_",
        "set_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)


class TracedValues:
    """The values between the parts of a split graph, remade in the fake mode that compiles them.

    Dynamo traces in one fake mode and hands over with another: sizes can be used as they are, tensors are made anew.
    """

    def __init__(self, split: torch.fx.GraphModule, inputs: Sequence[Any], mode: FakeTensorMode) -> None:
        placeholders = [node for node in split.graph.nodes if node.op == "placeholder"]
        self._mode = mode
        self._given: Mapping[torch.fx.Node, Any] = dict(zip(placeholders, inputs, strict=True))
        self._remade: dict[int, torch.Tensor] = {}

    def of(self, piece: torch.fx.GraphModule, call: torch.fx.Node) -> tuple[Any, ...] | None:
        """The arguments of `call`, which runs `piece`; None if they cannot be told without running the graph."""
        own = [node for node in piece.graph.nodes if node.op == "placeholder"]
        if call.kwargs or len(own) != len(call.args):
            return None
        noted = [node.meta.get("example_value") for node in own]
        if any(value is None for value in noted) or _share_memory(noted):
            return None
        values = []
        for argument, value in zip(call.args, noted, strict=True):
            if isinstance(argument, torch.fx.Node) and argument in self._given:
                values.append(self._given[argument])
            elif isinstance(value, FakeTensor):
                if not _can_be_remade(value):
                    return None
                values.append(self._remake(value))
            else:
                values.append(value)
        return tuple(values)

    def _remake(self, value: FakeTensor) -> torch.Tensor:
        """One tensor for one tensor, however many parts take it."""
        if id(value) not in self._remade:
            with self._mode:
                self._remade[id(value)] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=value.device
                )
        return self._remade[id(value)]


def reshapes_in_place(graphs: Iterator[torch.fx.GraphModule]) -> bool:
    """Whether a part changes the sizes of a tensor in place."""
    return any(
        node.op in ("call_method", "call_function") and _name(node.target) in RESHAPE_IN_PLACE
        for graph in graphs
        for node in graph.graph.nodes
    )


def _name(target: Any) -> str:
    """`unsqueeze_` of a method's name, a function or an overload such as `aten.unsqueeze_.default`."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.rpartition("::")[2]
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _can_be_remade(value: FakeTensor) -> bool:
    """An ordinary tensor that begins where its memory does."""
    offset = value.storage_offset()
    return value.layout is torch.strided and not value.requires_grad and isinstance(offset, int) and offset == 0


def _share_memory(values: Sequence[Any]) -> bool:
    """Whether two different tensors are views of one memory, which a compiler must know."""
    tensors = {id(value): value for value in values if isinstance(value, torch.Tensor)}
    return len({tensor.untyped_storage()._cdata for tensor in tensors.values()}) != len(tensors)
