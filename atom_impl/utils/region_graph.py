"""Token graphs, request graphs and the pool they share.

Recordings never overlap in use: a graph's output is consumed before the next one replays. So one pool serves them all
and costs what the largest needs, provided that whatever is read after a replay leaves the pool inside the recording.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import torch
from torch import nn

from atom_impl.device import Device, PoolHandle, get_device
from atom_impl.device.base import CaptureError
from atom_impl.graphs.recording import MissingRecordingError, Recording, ReplayError
from atom_impl.graphs.session import Session, current_session, eager_region, record
from atom_impl.utils import tree
from atom_impl.utils.forward_context import get_forward_context, token_graph_action
from atom_impl.utils.ladder import smallest_bucket
from atom_impl.utils.step_ledger import CopyKind
from atom_impl.utils.tracing import being_traced
from atom_impl.utils.unit_call import WRAP_CALL

__all__ = [
    "MissingRecordingError",
    "Recording",
    "ReplayError",
    "ReqGraph",
    "Session",
    "TokenGraph",
    "current_session",
    "eager_region",
    "graph_pool",
    "request_bucket",
    "reset_graph_pool",
    "token_graph",
    "units_of",
]

PHASES = ("prefill", "decode")
M = TypeVar("M", bound=type[nn.Module])

_pools: dict[str, tuple[Device, PoolHandle]] = {}


def graph_pool(device: Device | None = None) -> PoolHandle:
    """The pool that every recording of a device shares, made on first use."""
    device = device or get_device()
    if device.type not in _pools:
        _pools[device.type] = device, device.new_pool()
    return _pools[device.type][1]


def reset_graph_pool() -> None:
    """Give the pools back, once nothing recorded in them will replay again."""
    while _pools:
        device, pool = _pools.popitem()[1]
        device.release_pool(pool)


def request_bucket(running_bs: int, max_seqlen_q: int) -> tuple[int, int]:
    """The key of a request graph: padded requests, and the draft tokens that each one verifies (its rows less one)."""
    return running_bs, max_seqlen_q - 1


class ReqGraph:
    """Whole-forward graphs, one per request bucket. Eager regions are recorded inline."""

    def __init__(self, device: Device | None = None) -> None:
        self._device = device or get_device()
        self._recordings: dict[tuple[int, int], Recording] = {}
        self.closed = False

    def record(self, forward: Callable[[], None], *, module: nn.Module | None = None) -> tuple[int, int]:
        """Record `forward` for the live context's request bucket and return its key.

        `forward` writes what is read later into staging buffers and returns None: a tensor of the pool must not escape.
        """
        context = get_forward_context()
        if context.context is None:
            raise ReplayError("a request graph is recorded within set_forward_context(); there is no context")
        key = request_bucket(context.context.running_bs, _max_seqlen_q(context.attn_metadata))
        label = f"request graph {key}"
        _refuse_when_closed(self.closed, label)

        def deliver(result: Any) -> None:
            if result is not None:
                raise CaptureError(
                    f"{label}: the forward returned {type(result).__name__}; write it to a staging buffer"
                )

        self._recordings[key] = record(
            forward,
            (),
            {},
            device=self._device,
            pool=graph_pool(self._device),
            label=label,
            rows=key[0] * (key[1] + 1),
            breaks=False,
            deliver=deliver,
            module=module,
        )
        return key

    def replay(self, key: tuple[int, int]) -> None:
        """Run the recording of `key`; its results lie where its forward wrote them."""
        if key not in self._recordings:
            raise MissingRecordingError(
                f"no request graph for {key}; recorded are {sorted(self._recordings) or 'none'}"
            )
        self._recordings[key].replay()

    def recordings(self) -> dict[tuple[int, int], Recording]:
        return dict(self._recordings)

    def clear(self) -> None:
        for recording in self._recordings.values():
            recording.reset()
        self._recordings.clear()
        self.closed = False


class TokenGraph:
    """One unit's recordings, by token bucket: any step padded to that many rows replays it, whatever its requests."""

    def __init__(self, name: str = "unit", *, per_phase: bool = False, device: Device | None = None) -> None:
        self.name = name
        self.per_phase = per_phase
        self.closed = False
        self._device = device or get_device()
        self._recordings: dict[tuple[str | None, int], Recording] = {}
        self._asked: dict[str, set[int]] = {phase: set() for phase in PHASES}
        self._outputs = _OwnedOutputs()

    def learn(self, result: Any) -> None:
        """Take the shape of the unit's result from a plain run, so that buffers for it exist before a capture."""
        if not self.closed:
            self._outputs.reserve(result)

    def record(
        self, forward: Callable[..., Any], *args: Any, phase: str, module: nn.Module | None = None, **kwargs: Any
    ) -> Any:
        """Record the bucket of `args`' rows for `phase` and return the outputs.

        A bucket recorded already (by the other phase, or with other requests) is counted for this phase and replayed.
        """
        _check_phase(phase)
        rows = _rows(args, kwargs)
        key = self._key(phase, rows)
        label = f"token graph {self.name}[{rows} rows{', ' + phase if self.per_phase else ''}]"
        _refuse_when_closed(self.closed, label)
        if key not in self._recordings:
            self._recordings[key] = record(
                forward,
                args,
                kwargs,
                device=self._device,
                pool=graph_pool(self._device),
                label=label,
                rows=rows,
                breaks=True,
                deliver=lambda result: self._outputs.deliver(result, label),
                module=module,
            )
        else:
            self._recordings[key].replay(args, kwargs)
        self._asked[phase].add(rows)
        return self._recordings[key].outputs

    def replay(self, *args: Any, phase: str, **kwargs: Any) -> Any:
        """Replay the smallest bucket of `phase` that holds the rows of `args`; outputs have the bucket's rows."""
        _check_phase(phase)
        rows = _rows(args, kwargs)
        sizes = self.captured_sizes(phase)
        bucket = smallest_bucket(sizes, rows)
        if bucket is None:
            raise MissingRecordingError(f"{self.name}: no {phase} bucket holds {rows} rows; recorded are {sizes}")
        return self._recordings[self._key(phase, bucket)].replay(args, kwargs)

    def captured_sizes(self, phase: str) -> list[int]:
        """The buckets that a step of `phase` pads to, ascending: those that this phase's record pass asked for."""
        _check_phase(phase)
        return sorted(self._asked[phase])

    def recordings(self) -> dict[tuple[str | None, int], Recording]:
        return dict(self._recordings)

    def outputs(self) -> Iterable[torch.Tensor]:
        """The buffers outside the pool that replays write."""
        return self._outputs.buffers()

    def clear(self) -> None:
        for recording in self._recordings.values():
            recording.reset()
        self._recordings.clear()
        self._asked = {phase: set() for phase in PHASES}
        self._outputs = _OwnedOutputs()
        self.closed = False

    def _key(self, phase: str, rows: int) -> tuple[str | None, int]:
        return (phase if self.per_phase else None), rows


class _OwnedOutputs:
    """Buffers outside the pool for a unit's results: one per leaf, as tall as the tallest bucket, read as row
    prefixes.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def buffers(self) -> list[torch.Tensor]:
        return list(self._buffers.values())

    def reserve(self, result: Any) -> None:
        for path, leaf in tree.tensors(result):
            held = self._buffers.get(path)
            if held is None or not _fits(held, leaf):
                # A recording that reads the old buffer keeps it alive through its outputs.
                self._buffers[path] = torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)

    def deliver(self, result: Any, label: str) -> Any:
        paths = iter([path for path, _ in tree.leaves(result)])
        record = get_forward_context().record

        def copy(leaf: Any) -> Any:
            path = next(paths)
            if not isinstance(leaf, torch.Tensor):
                return leaf
            held = self._buffers.get(path)
            if held is None or not _fits(held, leaf):
                raise CaptureError(
                    f"{label}: result{path} {tuple(leaf.shape)} was never seen in a plain run; warm up first"
                )
            target = held[: leaf.shape[0]] if leaf.dim() else held
            target.copy_(leaf)
            if record is not None:
                record.copied(CopyKind.OUTPUT, leaf.nbytes)
            return target

        return tree.map_leaves(copy, result)


def _fits(held: torch.Tensor, leaf: torch.Tensor) -> bool:
    same = held.dtype == leaf.dtype and held.device == leaf.device and held.dim() == leaf.dim()
    return same and held.shape[1:] == leaf.shape[1:] and (leaf.dim() == 0 or held.shape[0] >= leaf.shape[0])


@overload
def token_graph(cls: M) -> M: ...
@overload
def token_graph(*, per_phase: bool = False) -> Callable[[M], M]: ...


def token_graph(cls: Any = None, *, per_phase: bool = False) -> Any:
    """Declare a module class as a recording unit, with or without `torch.compile`.

    A unit is the outermost module whose forward holds all the step's per-token work. Each instance gets its own
    `TokenGraph` (`instance.token_graph`). `per_phase`: prefill and decode record different work. It may stand above or
    below `@support_torch_compile`: recordings are taken of the compiled call either way.
    """

    def wrap(plain_call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain_call)
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if being_traced() or current_session() is not None:
                return plain_call(self, *args, **kwargs)
            return _run_unit(self, plain_call, args, kwargs)

        return call

    def decorate(unit: Any) -> Any:
        if WRAP_CALL in vars(unit):
            return unit
        # A decorator that gives the class another `__call__` later puts this wrapper around it again.
        setattr(unit, WRAP_CALL, staticmethod(wrap))
        unit.__call__ = wrap(unit.__call__)
        unit.token_graph = property(lambda self: _unit_graph(self, per_phase))
        return unit

    return decorate if cls is None else decorate(cls)


def units_of(model: nn.Module) -> list[nn.Module]:
    """The recording units in `model`, in the order of its modules."""
    return [module for module in model.modules() if hasattr(type(module), WRAP_CALL)]


def _unit_graph(unit: nn.Module, per_phase: bool) -> TokenGraph:
    graph = unit.__dict__.get("_token_graph")
    if graph is None:
        parameter = next(unit.parameters(), None)
        device = get_device(parameter.device.type if parameter is not None else None)
        graph = unit.__dict__["_token_graph"] = TokenGraph(type(unit).__name__, per_phase=per_phase, device=device)
    return graph


def _run_unit(unit: Any, plain_call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    action, phase = token_graph_action()
    graph: TokenGraph = unit.token_graph
    if action == "replay":
        return graph.replay(*args, phase=phase, **kwargs)
    if action == "record":
        return graph.record(lambda *a, **k: plain_call(unit, *a, **k), *args, phase=phase, module=unit, **kwargs)
    result = plain_call(unit, *args, **kwargs)
    graph.learn(result)
    return result


def _rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    counts = {leaf.shape[0] for leaf in tree.values((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()}
    if len(counts) != 1:
        raise ReplayError(
            f"a unit's tensor arguments must agree on their rows (dim 0); got {sorted(counts) or 'no tensor'}"
        )
    return counts.pop()


def _max_seqlen_q(metadata: Any) -> int:
    return int(metadata["max_seqlen_q"] if isinstance(metadata, dict) else metadata.max_seqlen_q)


def _check_phase(phase: str) -> None:
    if phase not in PHASES:
        raise ValueError(f"phase is {phase!r}; it is 'prefill' or 'decode'")


def _refuse_when_closed(closed: bool, label: str) -> None:
    if closed:
        raise CaptureError(f"{label}: capture closed after start-up; a recording now would stall a live step")
