"""Recording one graph: every launch runs once, in the pool, and leaves an entry.

Replay must not call the model's Python again: what a GPU froze has to be frozen here as well. So each launch is
logged with aliases of its pool tensors, handles of outside tensors, and its host scalars by value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload

from atom_impl.device.base import CaptureError
from atom_impl.device.software.arena import OFF, STRAY, library
from atom_impl.device.software.asynchronous import run_to_end, starts_nothing
from atom_impl.device.software.entries import Entry
from atom_impl.device.software.host import is_host, is_staged, mark_made_on_host
from atom_impl.device.software.operators import OpFacts, facts_of, has_python_kernel, tensors_in
from atom_impl.device.software.outside import OutsideTensors, Undo
from atom_impl.device.software.pool import Pool, alias
from atom_impl.device.software.sites import call_site
from atom_impl.device.software.streams import Streams
from atom_impl.device.software.thread_state import state

_COPY = "aten::copy_"
_RESIZE = frozenset(("aten::resize_", "aten::resize_as_"))


class Recorder:
    """The log of one capture. `active` names the launch that is running, for the deny rules."""

    def __init__(self, pool: Pool, generators: Iterable[torch.Generator] = ()) -> None:
        self.pool = pool
        self.entries: list[Entry] = []
        self.outside = OutsideTensors()
        self.undo = Undo()
        self.active: str | None = None
        self.streams = Streams(pool.id)
        self._library = library()
        self._aliases: dict[Any, torch.Tensor] = {}
        self._generators = {_identity(generator) for generator in (torch.default_generator, *generators)}

    def operator(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator and log what a GPU would have launched."""
        facts = facts_of(op)
        if facts.unrecorded:
            return op(*args, **kwargs)
        if self._is_host_work(args, kwargs):
            return mark_made_on_host(op(*args, **kwargs))
        if facts.collective:
            return state.asynchronous.run(op, facts.name, lambda: self._collective(op, facts, args, kwargs))
        if has_python_kernel(op):
            raise CaptureError(
                f"{facts.name} at {call_site()} is implemented in Python that a replay would run again; register its "
                f"body with register_body(torch.ops.{facts.name.replace('::', '.')}.default, function)"
            )
        self._library.arena_mode(OFF)
        try:
            with torch._C._DisableTorchDispatch():
                if facts.metadata_only:
                    return self._change_metadata(op, facts, args, kwargs)
                return self._run_operator(op, facts, args, kwargs)
        finally:
            self._library.arena_mode(STRAY)

    def launch(
        self, fn: Callable[..., Any], args: tuple[Any, ...], name: str, written: Iterable[int] | None = None
    ) -> Any:
        """Run a foreign kernel as one entry. `written`: the positions it may write; None means any but parameters."""
        self._library.arena_mode(OFF)
        try:
            with torch._C._DisableTorchDispatch():
                if written is None:
                    written = [position for position, value in enumerate(args) if _may_be_written(value)]
                positions = tuple(written)
                self._save(t for position in positions for t in tensors_in(args[position]))
                entry = self._new_entry(name, fn, args, {})
                entry.written_at = positions
                result = self._run(entry, args, {})
                self._log(entry, result)
                return result
        finally:
            self._library.arena_mode(STRAY)

    def _collective(self, op: OpOverload, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a collective to its end, as one entry. Waiting for it, or wrapping its result, is none."""
        self._library.arena_mode(OFF)
        try:
            with torch._C._DisableTorchDispatch():
                if starts_nothing(facts.name):
                    return op(*args, **kwargs)
                entry = self._new_entry(facts.name, functools.partial(run_to_end, op), args, kwargs)
                if op.namespace == "c10d":  # these declare no writes
                    entry.written_at = tuple(range(len(args)))
                    self._save(tensors_in(args))
                else:
                    entry.written_at = tuple(at for at, _ in facts.written if at < len(args))
                    self._save(facts.written_tensors(args, kwargs))
                result = self._run(entry, args, kwargs)
                self._log(entry, result)
                return result
        finally:
            self._library.arena_mode(STRAY)

    def allocate(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run an allocation that launches nothing."""
        self._library.arena_mode(self.pool.record_mode)
        try:
            return fn(*args)
        finally:
            self._library.arena_mode(STRAY)

    def _run_operator(self, op: OpOverload, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = facts.written_tensors(args, kwargs) if facts.written else []
        self._save(written)
        entry = self._new_entry(facts.name, op, args, kwargs)
        before = [t.untyped_storage().data_ptr() for t in written if t.layout is torch.strided]
        result = self._run(entry, args, kwargs)
        after = [t.untyped_storage().data_ptr() for t in written if t.layout is torch.strided]
        if before != after:  # out= resized its target
            entry.resized = frozenset(after) - frozenset(before)
            entry.args, entry.kwargs = self._freeze((args, kwargs), entry)
        nothing_happened = facts.view_without_allocation and entry.first_event == entry.last_event
        if not nothing_happened and not self._is_bare_allocation(facts):
            self._log(entry, result)
        return result

    def _log(self, entry: Entry, result: Any) -> None:
        given = {t.untyped_storage().data_ptr() for t in tensors_in([*entry.args, *entry.kwargs.values()])}
        made = [t for t in tensors_in(result) if self.pool.owns(t) and t.untyped_storage().data_ptr() not in given]
        entry.results = tuple(self._alias(t, t.untyped_storage()) for t in made)
        self.entries.append(entry)
        self.streams.launched(entry, made)

    @staticmethod
    def _is_bare_allocation(facts: OpFacts) -> bool:
        filled = (
            torch.are_deterministic_algorithms_enabled() and torch._C._get_deterministic_fill_uninitialized_memory()
        )
        return facts.factory and not filled

    def _change_metadata(self, op: OpOverload, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Sizes and strides are host state: nothing is launched, except where growing a tensor moves its bytes."""
        tensor = args[0]
        storage = tensor.untyped_storage()
        old_bytes = storage.nbytes()
        grows = facts.name in _RESIZE and old_bytes
        old = alias(_as_bytes(tensor, old_bytes)) if grows else None
        address = storage.data_ptr()
        first_event = self._library.pool_log_size(self.pool.id)
        result = self.allocate(op, *args) if not kwargs else self.allocate(lambda: op(*args, **kwargs))
        if old is not None and storage.data_ptr() != address:
            if not self.pool.holds_address(address):
                raise CaptureError(
                    f"{facts.name} at {call_site()} grows a tensor from outside the pool, so that it moves"
                )
            new = alias(_as_bytes(tensor, old_bytes))
            place = first_event + 1  # after the new block was taken, before the old one was given back
            move = Entry(_COPY, torch.ops.aten.copy_.default, (new, old), {}, call_site(), place, place)
            self.entries.append(move)
            self.streams.launched(move, ())
        self._library.arena_mode(OFF)
        return result

    def _run(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry.first_event = self._library.pool_log_size(self.pool.id)
        self.active = entry.name
        self._library.arena_mode(self.pool.record_mode)
        try:
            return entry.fn(*args, **kwargs)
        finally:
            self._library.arena_mode(OFF)
            self.active = None
            entry.last_event = self._library.pool_log_size(self.pool.id)

    def _new_entry(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        entry = Entry(name, fn, (), {}, call_site())
        entry.args, entry.kwargs = self._freeze((args, kwargs), entry)
        return entry

    def _save(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if not self.pool.owns(tensor):
                self.undo.save(tensor)

    def _freeze(self, value: Any, entry: Entry) -> Any:
        """`value` as the entry keeps it: containers rebuilt, because their owner may change them afterwards."""
        if isinstance(value, torch.Tensor):
            return self._freeze_tensor(value, entry)
        if type(value) in (list, tuple):
            return type(value)(self._freeze(item, entry) for item in value)
        if type(value) is dict:
            return {key: self._freeze(item, entry) for key, item in value.items()}
        if isinstance(value, torch.Generator) and _identity(value) not in self._generators:
            raise CaptureError(
                f"{entry.name} at {entry.site} draws from a generator that the graph does not know; "
                "call register_generator_state(generator) before capture_begin"
            )
        return value

    def _freeze_tensor(self, tensor: torch.Tensor, entry: Entry) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            return tensor.detach()
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address == 0 or self.pool.holds_address(address):
            return self._alias(tensor, storage)
        if self._is_host_memory(storage):
            return self._freeze_host(tensor, storage, entry)
        return self.outside.handle(tensor, storage, f"{entry.name} (recorded at {entry.site})")

    def _alias(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
        place = (storage.data_ptr(), storage.nbytes(), tensor.storage_offset(), tensor.size(), tensor.stride())
        key = (place, tensor.dtype, tensor.is_conj(), tensor.is_neg())
        known = self._aliases.get(key)
        if known is None:
            known = self._aliases[key] = alias(tensor)
        return known

    def _freeze_host(self, tensor: torch.Tensor, storage: torch.UntypedStorage, entry: Entry) -> torch.Tensor:
        staged = is_staged(storage)
        if staged and entry.name == _COPY:
            return self.outside.handle(tensor, storage, f"{entry.name} (recorded at {entry.site})")
        if tensor.dim() == 0:
            return tensor.detach() if _is_wrapped_number(tensor) else tensor.detach().clone()
        origin = "marked with host()" if staged else "made during the capture, pageable on a GPU"
        raise CaptureError(
            f"{entry.name} at {entry.site} reads host memory ({origin}): {list(tensor.shape)} {tensor.dtype}; make the "
            "tensor before the capture, or copy it into a device tensor from a staged buffer"
        )

    def _is_host_work(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether every tensor argument is host memory, so that a GPU run would compute at once, on the host."""
        tensors = list(tensors_in([*args, *kwargs.values()]))
        return bool(tensors) and all(
            tensor.layout is torch.strided and self._is_host_memory(tensor.untyped_storage()) for tensor in tensors
        )

    def _is_host_memory(self, storage: torch.UntypedStorage) -> bool:
        address = storage.data_ptr()
        return bool(address and self._library.stray_contains(address)) or is_host(storage)


def _may_be_written(value: Any) -> bool:
    """Whether a foreign kernel that declares nothing may write this argument."""
    return any(not isinstance(tensor, torch.nn.Parameter) for tensor in tensors_in(value))


def _identity(generator: torch.Generator) -> int:
    return int(generator._cdata)  # type: ignore[attr-defined]  # operators see another Python object of the same generator


def _as_bytes(tensor: torch.Tensor, nbytes: int) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), 0, (nbytes,), (1,))


_INTEGERS = torch.zeros(1, dtype=torch.int32)


def _is_wrapped_number(scalar: torch.Tensor) -> bool:
    """Whether `scalar` came from a Python number, which promotes types less strongly than a tensor of its dtype."""
    wide = scalar.dtype in (torch.float64, torch.complex128)
    return wide and torch.result_type(_INTEGERS, scalar) != scalar.dtype
