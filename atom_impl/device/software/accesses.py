"""What each recorded launch reads and writes.

A CPU runs launches in the order of the program, so two faults never show in its results: a launch that another stream
does not wait for, and a counter that the graph adds to and nobody sets back. Both are seen in the accesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch._ops import OpOverload

from atom_impl.device.software.arena import library
from atom_impl.device.software.entries import Entry
from atom_impl.device.software.operators import facts_of, tensors_in

#: Operators whose written argument takes nothing over from what it held.
_OVERWRITING = frozenset(
    f"aten::{name}"
    for name in ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_")
)
#: Operators that write some elements of their argument and read none. The others stay, as a KV cache's rows do.
_WRITING_PARTS = frozenset(
    f"aten::{name}" for name in ("index_copy_", "index_fill_", "masked_fill_", "masked_scatter_", "scatter_")
)
_ACCUMULATING_BY_FLAG = frozenset(("aten::index_put_", "aten::_index_put_impl_", "aten::put_"))
_MOST_EXACT_ELEMENTS = 1 << 20


class ReadBeforeWrite(NamedTuple):
    """A tensor from outside the pool that a graph reads as it finds it, and leaves changed."""

    tensor: torch.Tensor  # as its first reader was given it
    read_by: str
    written_by: str


def writes(entry: Entry) -> list[torch.Tensor]:
    """What `entry` may write: what its schema or its `launch` says, and what it allocates and returns."""
    if isinstance(entry.fn, OpOverload):
        given = facts_of(entry.fn).written_tensors(entry.args, entry.kwargs)
    else:
        given = [t for position in entry.written_at for t in tensors_in(entry.args[position])]
    return [*given, *entry.results]


def reads(entry: Entry) -> list[torch.Tensor]:
    """What `entry` reads. A written argument counts as read unless its operator is known to overwrite it."""
    written = {id(tensor) for tensor in writes(entry)} if _only_writes(entry) else set()
    return [t for t in tensors_in([*entry.args, *entry.kwargs.values()]) if id(t) not in written]


def _only_writes(entry: Entry) -> bool:
    if not isinstance(entry.fn, OpOverload):
        return False
    if entry.name in _ACCUMULATING_BY_FLAG:
        flag = next((value for value in entry.args[3:4]), entry.kwargs.get("accumulate", False))
        return not flag
    if entry.name in _WRITING_PARTS:
        return "reduce" not in entry.fn._overloadname
    return entry.name in _OVERWRITING or any(argument.is_out for argument in entry.fn._schema.arguments)


def reads_before_writes(entries: Iterable[Entry]) -> Iterator[ReadBeforeWrite]:
    """The tensors outside every pool that are read as found and written afterwards, in the order of those writes."""
    read_as_found: list[tuple[torch.Tensor, Entry]] = []
    written: list[torch.Tensor] = []
    found: list[torch.Tensor] = []
    for entry in entries:
        for tensor in filter(_is_outside, reads(entry)):
            if not any(_covers(earlier, tensor) for earlier in written):
                read_as_found.append((tensor, entry))
        for tensor in filter(_is_outside, writes(entry)):
            for before, reader in read_as_found:
                if overlap(before, tensor) and not any(overlap(before, known) for known in found):
                    found.append(before)
                    yield ReadBeforeWrite(before, str(reader), str(entry))
            written.append(tensor)


def _is_outside(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and library().pool_find(tensor.data_ptr()) < 0


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share a byte. Two strided views are compared element by element, up to 2**20 of them."""
    first, second = extent(a), extent(b)
    if first.start >= second.stop or second.start >= first.stop:
        return False
    if (_is_dense(a) and _is_dense(b)) or max(a.numel(), b.numel()) > _MOST_EXACT_ELEMENTS:
        return True
    return bool(torch.isin(_bytes_of(a), _bytes_of(b)).any())


def extent(tensor: torch.Tensor) -> range:
    """Addresses from a tensor's first byte to its last; empty without elements."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return range(0)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return range(tensor.data_ptr(), tensor.data_ptr() + span * tensor.itemsize)


def _covers(outer: torch.Tensor, inner: torch.Tensor) -> bool:
    outside, inside = extent(outer), extent(inner)
    return _is_dense(outer) and outside.start <= inside.start and inside.stop <= outside.stop


def _is_dense(tensor: torch.Tensor) -> bool:
    return len(extent(tensor)) == tensor.numel() * tensor.itemsize


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    offsets = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.size(), tensor.stride(), strict=True):
        offsets = offsets[..., None] + torch.arange(size) * stride
    starts = tensor.data_ptr() + offsets.reshape(-1, 1) * tensor.itemsize
    return (starts + torch.arange(tensor.itemsize)).reshape(-1)
