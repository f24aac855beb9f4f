"""What a recording needs to know of an operator, looked up once.

A view costs a GPU nothing and a factory launches nothing; counting either as a node makes an empty segment look busy.
An operator whose Python body nobody registered would run the model's Python again at every replay.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

#: Allocations without a launch.
_FACTORIES = frozenset(
    ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")
)
#: Where an operator that allocates and writes nothing can only have made a view.
_VIEW_NAMESPACES = frozenset(("aten", "prims", "inductor"))
#: Host-side bookkeeping, never a launch.
_UNRECORDED_NAMESPACES = frozenset(("profiler", "debug_mode_ops"))
_COLLECTIVE_NAMESPACES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"))
_CPU_KERNEL_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")


@dataclass(frozen=True)
class OpFacts:
    name: str  # "aten::add_"
    written: tuple[tuple[int, str], ...]  # position and name of every argument that the schema lets it write
    metadata_only: bool  # changes sizes, strides or the storage, never elements
    factory: bool
    view_without_allocation: bool
    unrecorded: bool
    collective: bool

    def written_tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for position, name in self.written:
            value = kwargs[name] if name in kwargs else args[position] if position < len(args) else None
            found.extend(tensors_in(value))
        return found


@functools.cache
def facts_of(op: OpOverload) -> OpFacts:
    schema = op._schema
    written = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    return OpFacts(
        name=schema.name,
        written=written,
        metadata_only=torch.Tag.inplace_view in op.tags,
        factory=schema.name in _FACTORIES,
        view_without_allocation=not schema.is_mutable and op.namespace in _VIEW_NAMESPACES,
        unrecorded=op.namespace in _UNRECORDED_NAMESPACES,
        collective=op.namespace in _COLLECTIVE_NAMESPACES,
    )


def has_python_kernel(op: OpOverload) -> bool:
    """Whether `op`'s CPU kernel was registered from Python with `torch.library`."""
    if op.namespace in _VIEW_NAMESPACES:
        return False
    name = op._schema.name.replace("::", "/")
    overload = op._schema.overload_name
    qualified = f"{name}.{overload}" if overload else name
    return any(f"{qualified}/{key}" in torch.library._impls for key in _CPU_KERNEL_KEYS)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument: itself, or those in its lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
