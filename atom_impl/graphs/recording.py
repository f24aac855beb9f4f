"""A finished recording: segments and eager regions in order, the addresses they rely on, and the rules of a replay.

A replay is right only while every address it was recorded with still holds what the recording believes. So the inputs,
the metadata's leaves, the weights and every region's result are compared with what was recorded, and what differs has
a name.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from atom_impl.device.base import Graph
from atom_impl.utils import tree
from atom_impl.utils.forward_context import get_forward_context
from atom_impl.utils.step_ledger import CopyCount, CopyKind, StepRecord


class ReplayError(RuntimeError):
    """A replay would compute on something else than it was recorded with; the message names the recording and the
    part.
    """


class MissingRecordingError(ReplayError):
    """A step asked for a bucket that was never recorded."""


@dataclass
class Segment:
    """One graph."""

    graph: Graph
    nodes: int


@dataclass
class HandOff:
    """Where one leaf of a region's result must land. `target` is None for a leaf that the recording froze."""

    path: str
    constant: Any = None
    target: torch.Tensor | None = None
    is_alias: bool = False


@dataclass
class Region:
    """One eager region: its body, the arguments it was recorded with, and the hand-off of its result."""

    name: str
    body: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    handoffs: list[HandOff]


@dataclass
class InputSlot:
    """One recorded argument: a tensor at a fixed address, or a constant that the recording froze."""

    path: str
    value: Any

    def accept(self, given: Any, label: str, record: StepRecord | None) -> None:
        if not isinstance(self.value, torch.Tensor):
            if isinstance(given, torch.Tensor) or (given is not self.value and given != self.value):
                raise ReplayError(
                    f"{label}: argument {self.path} was recorded as {self.value!r} and is {_describe(given)} now; "
                    "a recording cannot see a changed constant: record it under its own unit"
                )
            return
        if not isinstance(given, torch.Tensor):
            raise ReplayError(f"{label}: argument {self.path} was recorded as a tensor and is {given!r} now")
        self._accept_tensor(self.value, given, label, record)

    def _accept_tensor(self, own: torch.Tensor, given: torch.Tensor, label: str, record: StepRecord | None) -> None:
        if given.dtype != own.dtype or given.shape[1:] != own.shape[1:] or given.device != own.device:
            raise ReplayError(
                f"{label}: argument {self.path} was recorded as {_describe(own)} and is {_describe(given)}"
            )
        rows = given.shape[0] if given.dim() else 1
        if own.dim() and rows > own.shape[0]:
            raise ReplayError(f"{label}: argument {self.path} has {rows} rows, the recording holds {own.shape[0]}")
        if given.data_ptr() != own.data_ptr():
            (own[:rows] if own.dim() else own).copy_(given)
            _note(record, CopyKind.COPY_IN, given.nbytes)
        elif given.stride() != own.stride() and given.numel() > 1:
            raise ReplayError(
                f"{label}: argument {self.path} changed its strides from {own.stride()} to {given.stride()}"
            )
        if own.dim() and rows < own.shape[0]:
            own[rows:].zero_()
            _note(record, CopyKind.PADDING, own[rows:].nbytes)


class MetadataLeaf(NamedTuple):
    """One tensor of the metadata: its path, how it is found in a live step's metadata, and where it lay."""

    path: str
    find: Callable[[Any], Any]
    address: int

    def moved(self, live: Any) -> bool:
        try:
            tensor = self.find(live)
        except (AttributeError, KeyError, IndexError, TypeError):
            return False  # a step without it reads it nowhere by this name
        return isinstance(tensor, torch.Tensor) and tensor.data_ptr() != self.address


@dataclass
class Recording:
    """What `replay` runs. `outputs` are views of memory outside the pool; the next replay overwrites them."""

    label: str
    rows: int = 0
    steps: list[Segment | Region] = field(default_factory=list)
    inputs: list[InputSlot] = field(default_factory=list)
    outputs: Any = None
    copies: dict[CopyKind, CopyCount] = field(default_factory=dict)  # of one replay, within the segments
    metadata: list[MetadataLeaf] = field(default_factory=list)
    weights: dict[str, int] = field(default_factory=dict)  # name -> address
    module: weakref.ref[nn.Module] | None = None
    replays: int = 0

    def graphs(self) -> list[Graph]:
        """The graphs of the segments, in the order of their launches."""
        return [step.graph for step in self.steps if isinstance(step, Segment)]

    @property
    def segments(self) -> int:
        return sum(isinstance(step, Segment) for step in self.steps)

    @property
    def regions(self) -> int:
        return len(self.steps) - self.segments

    @property
    def nodes(self) -> int:
        return sum(step.nodes for step in self.steps if isinstance(step, Segment))

    def topology(self) -> str:
        """The order of segments (with node counts) and regions: equal strings mean the same launches in the same
        order.
        """
        return " ".join(f"g{step.nodes}" if isinstance(step, Segment) else step.name for step in self.steps)

    def replay(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        context = get_forward_context()
        record = context.record
        self._accept(args, kwargs or {}, record)
        self._check_metadata(context.attn_metadata)
        if self.replays == 0:
            self._check_weights()
        for step in self.steps:
            if isinstance(step, Segment):
                step.graph.replay()
            else:
                self._run_region(step, record)
        self.replays += 1
        if record is not None:
            segments = self.segments
            record.segments += segments
            record.regions += len(self.steps) - segments
            record.add_copies(self.copies)
        return self.outputs

    def reset(self) -> None:
        for step in self.steps:
            if isinstance(step, Segment):
                step.graph.reset()
        self.steps.clear()

    @cached_property
    def _positional(self) -> int:
        """How many arguments the recording has, where all are positional leaves; -1 where some are nested or named."""
        plain = all(slot.path == f"[0][{index}]" for index, slot in enumerate(self.inputs))
        return len(self.inputs) if plain else -1

    def _accept(self, args: tuple[Any, ...], kwargs: dict[str, Any], record: StepRecord | None) -> None:
        if not kwargs and self._positional == len(args):
            for slot, value in zip(self.inputs, args, strict=True):
                slot.accept(value, self.label, record)
            return
        given = list(tree.leaves((args, kwargs)))
        if [path for path, _ in given] != [slot.path for slot in self.inputs]:
            recorded = ", ".join(slot.path for slot in self.inputs) or "nothing"
            raise ReplayError(f"{self.label}: recorded with arguments {recorded}, called with {[p for p, _ in given]}")
        for slot, (_, value) in zip(self.inputs, given, strict=True):
            slot.accept(value, self.label, record)

    def _check_metadata(self, live: Any) -> None:
        for leaf in self.metadata:
            if leaf.moved(live):
                raise ReplayError(
                    f"{self.label}: attn_metadata{leaf.path} moved since the recording; the recording still reads the "
                    "old address and would see stale values: copy the step's values into the staging buffer instead"
                )

    def _check_weights(self) -> None:
        module = self.module() if self.module is not None else None
        if module is None:
            return
        for name, address in weight_addresses(module).items():
            if self.weights.get(name, address) != address:
                raise ReplayError(
                    f"{self.label}: weight {name} moved since the recording; record again after loading weights"
                )

    def _run_region(self, region: Region, record: StepRecord | None) -> None:
        result = list(tree.leaves(region.body(*region.args, **region.kwargs)))
        if len(result) != len(region.handoffs):
            raise ReplayError(
                f"{self.label}: region {region.name} returned {len(result)} values, not {len(region.handoffs)}"
            )
        for handoff, (path, value) in zip(region.handoffs, result, strict=True):
            self._deliver(region, handoff, path, settled(value), record)

    def _deliver(self, region: Region, handoff: HandOff, path: str, value: Any, record: StepRecord | None) -> None:
        where = f"{self.label}: region {region.name}, result{path}"
        target = handoff.target
        if target is None:
            if isinstance(value, torch.Tensor) or (value is not handoff.constant and value != handoff.constant):
                raise ReplayError(f"{where}: recorded {handoff.constant!r}, got {_describe(value)}")
            return
        if not isinstance(value, torch.Tensor) or value.shape != target.shape or value.dtype != target.dtype:
            raise ReplayError(f"{where}: recorded {_describe(target)}, got {_describe(value)}")
        if value.data_ptr() == target.data_ptr() and value.stride() == target.stride():
            return
        if handoff.is_alias:
            raise ReplayError(f"{where}: recorded as the region's own argument handed back, got another tensor")
        target.copy_(value)
        _note(record, CopyKind.HANDOFF, value.nbytes)


def settled(value: Any) -> Any:
    """`value`, or the tensor inside a functional collective's result once that is there.

    Such a result has no address to compare and, handed on as it is, would be waited for by nobody.
    """
    functional: Any = sys.modules.get("torch.distributed._functional_collectives")
    if functional is not None and isinstance(value, functional.AsyncCollectiveTensor):
        return value.wait()
    return value


def weight_addresses(module: nn.Module) -> dict[str, int]:
    """Where every parameter and buffer of `module` lies."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.data_ptr() for name, tensor in named}


def _note(record: StepRecord | None, kind: CopyKind, nbytes: int) -> None:
    if record is not None:
        record.copied(kind, nbytes)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return repr(value)
