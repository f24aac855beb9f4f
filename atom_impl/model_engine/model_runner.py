"""Stage a step, decide once how it runs, run it, and leave a record of what really happened.

The decision is `ForwardMode.decide`; nothing below it chooses again. A step that does not replay what its mode asks
for is counted with its reason, and a bucket that was never recorded is an error, never a quiet eager run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from atom_impl.compilation.steady_state import compiling_nothing, warm_up_rows
from atom_impl.config import CompilationLevel, Config, CUDAGraphMode
from atom_impl.device import get_device
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.buffers import make_kv_cache, make_staging
from atom_impl.model_engine.capture import CaptureReport, capture_all
from atom_impl.model_engine.level_one import compile_units
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.forward_context import Context, forward_context, get_forward_context
from atom_impl.utils.forward_mode import Captured, ForwardMode
from atom_impl.utils.region_graph import ReqGraph, TokenGraph, request_bucket, units_of
from atom_impl.utils.step_ledger import CopyKind, Fallback, StepLedger, StepRecord


@dataclass
class StepOutput:
    """`logits` [live rows, vocabulary] and `hidden_states` [live rows, hidden]; the next step overwrites the latter."""

    logits: torch.Tensor
    hidden_states: torch.Tensor
    record: StepRecord


class ModelRunner:
    """Runs one model on one device. `model` is built from `config`; `kv_cache` may be shared with another runner."""

    def __init__(
        self, config: Config, model: nn.Module, *, kv_cache: Mapping[str, KVCacheTensor] | None = None
    ) -> None:
        self.config = config
        self.device = get_device(torch.device(config.device).type)
        self.mode = config.compilation_config.cudagraph_mode or CUDAGraphMode.NONE
        self.enforce_eager = config.enforce_eager
        self.capture_sizes = list(config.capture_sizes or [])
        self.prefill_sizes = list(config.prefill_capture_sizes or [])
        self.max_q_len = 1
        self.model: Any = model
        if config.compilation_config.level == CompilationLevel.DYNAMO_AS_IS:
            compile_units(model)
        self.kv_cache = kv_cache if kv_cache is not None else make_kv_cache(config, self.device.torch_device)
        self.staging = make_staging(config, self.device.torch_device, self.max_q_len)
        self.forward_vars = {"outputs": self.staging.outputs}
        self.req_graph = ReqGraph(self.device)
        self.ledger = StepLedger()
        self.capture_report: CaptureReport | None = None
        self._captured = Captured()

    def units(self) -> list[TokenGraph]:
        """The token graphs of the model's recording units."""
        return [unit.token_graph for unit in units_of(self.model)]  # type: ignore[misc]

    def captured(self) -> Captured:
        """What a step can replay. A token bucket counts only when every unit has it."""
        units = self.units()

        def common(phase: str) -> tuple[int, ...]:
            sizes = [set(unit.captured_sizes(phase)) for unit in units]
            return tuple(sorted(set.intersection(*sizes))) if sizes else ()

        requests = tuple(sorted(bs for bs, draft in self.req_graph.recordings() if draft == self.max_q_len - 1))
        return Captured(requests, common("decode"), common("prefill"), done=self.capture_report is not None)

    def decide(
        self, *, is_prefill: bool, requests: int, rows: int, max_seqlen_q: int = 1, graphs: bool = True
    ) -> ForwardMode:
        """Where a step of this shape runs. Pure: it runs nothing."""
        refusal = self._refusal() if graphs else Fallback.REQUESTED
        return ForwardMode.decide(
            mode=self.config.requested_mode,
            is_prefill=is_prefill,
            scheduled_bs=requests,
            scheduled_tokens=rows,
            max_seqlen_q=max_seqlen_q,
            captured=self._captured,
            allow_graphs=refusal,
        )

    @torch.inference_mode()
    def warmup_model(self) -> None:
        """The first runs of the model, at two rows or more first: they trace and compile for every row count."""
        compilation = self.config.compilation_config
        largest = max(2, *self.capture_sizes, *self.prefill_sizes)
        limit = min(self.staging.max_rows, self.staging.max_requests * self.staging.max_model_len)
        for rows in warm_up_rows(compilation.level, largest, limit, compilation.compile_sizes):
            self.run_dummy(rows, is_prefill=True, tr_graph=None)

    @torch.inference_mode()
    def capture_cudagraph(self) -> tuple[float, list[int]]:
        """Record everything that the mode asks for, largest bucket first; then capture is closed.

        Returns the seconds it took and the ladder, ascending.
        """
        started = time.perf_counter()
        self.warmup_model()
        self.capture_report = capture_all(self)
        self._captured = self.captured()
        self.device.synchronize()
        self.req_graph.closed = True
        for unit in self.units():
            unit.closed = True
        return time.perf_counter() - started, sorted(self.capture_sizes)

    @torch.inference_mode()
    def step(self, batch: ScheduledBatch, *, graphs: bool = True, rows: int | None = None) -> StepOutput:
        """Run one step. `graphs=False` runs it without a graph, padded to `rows` when given."""
        started = time.perf_counter_ns()
        mode = self.decide(
            is_prefill=batch.is_prefill,
            requests=batch.requests,
            rows=batch.rows,
            max_seqlen_q=batch.max_seqlen_q,
            graphs=graphs,
        )
        if rows is not None:
            mode = _padded(mode, rows)
        record = _open_record(mode)
        compiles, recompiles = compilation_counter.num_inductor_compiles, compilation_counter.recompiles
        input_ids, positions, metadata = self.staging.stage(batch, mode, record)
        context = self._context(mode, positions)
        action = "replay" if mode.token_graph else None
        with forward_context(
            metadata, self.config, context, kv_cache_data=self.kv_cache, tr_graph=action, record=record, mode=mode
        ):
            logits, hidden_states = self.run_model(input_ids)
        record.compiles = compilation_counter.num_inductor_compiles - compiles
        record.recompiles = compilation_counter.recompiles - recompiles
        record.host_us = (time.perf_counter_ns() - started) / 1e3
        self.ledger.close(record)
        return StepOutput(logits, hidden_states, record)

    def run_model(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the forward of the live context on its padded rows; returns (logits, hidden states) of the live rows."""
        forward = get_forward_context()
        context, mode = forward.context, forward.forward_mode
        if context is None or mode is None:
            raise RuntimeError("run_model() runs within the forward context of a step; call step()")
        if mode.use_cudagraph:
            self.req_graph.replay(request_bucket(context.running_bs, mode.max_seqlen_q))
            hidden_states = self.forward_vars["outputs"]
        elif self.capture_report is not None and not mode.token_graph:
            with compiling_nothing(self.config.compilation_config.level):
                hidden_states = self.model(input_ids, context.positions)
        else:
            hidden_states = self.model(input_ids, context.positions)
        live = hidden_states[: mode.scheduled_tokens]
        return self.model.compute_logits(live), live

    def run_dummy(self, rows: int, *, is_prefill: bool, tr_graph: str | None, record_request: bool = False) -> None:
        """Run (or record) a step of `rows` rows that belongs to no request and writes no cache slot."""
        batch = self.dummy_batch(rows, is_prefill=is_prefill)
        mode = ForwardMode(is_prefill, batch.requests, rows, batch.requests, rows, batch.max_seqlen_q, self.mode.name)
        record = StepRecord()
        input_ids, positions, metadata = self.staging.stage(batch, mode, record)
        context = self._context(mode, positions)
        with forward_context(
            metadata, self.config, context, kv_cache_data=self.kv_cache, tr_graph=tr_graph, record=record, mode=mode
        ):
            if record_request:
                self.req_graph.record(lambda: self._full_forward(input_ids, positions), module=self.model)
            elif tr_graph is None:
                with self.device.warming_up():
                    self.model.compute_logits(self.model(input_ids, positions)[:1])
            else:
                self.model(input_ids, positions)

    def dummy_batch(self, rows: int, *, is_prefill: bool) -> ScheduledBatch:
        """`rows` rows of token 0 in blocks that do not exist: slot -1 everywhere, so that nothing is cached."""
        if is_prefill:
            longest = self.staging.max_model_len
            lengths = [min(longest, rows - at) for at in range(0, rows, longest)]
        else:
            lengths = [1] * rows
        blocks = [[-1] * -(-length // self.staging.block_size) for length in lengths]
        return ScheduledBatch(is_prefill, [[0] * length for length in lengths], lengths, blocks)

    def close(self) -> None:
        """Drop the recordings before weights and cache go."""
        self.req_graph.clear()
        for unit in self.units():
            unit.clear()
        self.capture_report, self._captured = None, Captured()

    def outputs(self) -> Iterable[torch.Tensor]:
        """Every buffer that a replay writes for its caller."""
        yield self.staging.outputs
        for unit in self.units():
            yield from unit.outputs()

    def _refusal(self) -> Fallback | None:
        if self.enforce_eager:
            return Fallback.ENFORCE_EAGER
        return None if self.config.compilation_config.use_cudagraph else Fallback.GRAPHS_OFF

    def _full_forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> None:
        hidden_states = self.model(input_ids, positions)
        self.forward_vars["outputs"][: hidden_states.shape[0]].copy_(hidden_states)
        record = get_forward_context().record
        if record is not None:
            record.copied(CopyKind.OUTPUT, hidden_states.nbytes)

    def _context(self, mode: ForwardMode, positions: torch.Tensor) -> Context:
        return Context(
            positions=positions,
            is_prefill=mode.is_prefill,
            batch_size=mode.scheduled_bs,
            running_bs=mode.running_bs,
            running_tokens=mode.running_tokens,
        )


def _padded(mode: ForwardMode, rows: int) -> ForwardMode:
    if rows < mode.scheduled_tokens:
        raise ValueError(f"a step of {mode.scheduled_tokens} rows cannot be padded to {rows}")
    if mode.is_prefill:
        return replace(mode, running_tokens=rows)
    if rows % mode.max_seqlen_q:
        raise ValueError(f"{rows} rows are no multiple of the {mode.max_seqlen_q} rows of a request")
    return replace(mode, running_tokens=rows, running_bs=rows // mode.max_seqlen_q)


def _open_record(mode: ForwardMode) -> StepRecord:
    key: Any = None
    if mode.use_cudagraph:
        key = request_bucket(mode.running_bs, mode.max_seqlen_q)
    elif mode.token_graph:
        key = mode.running_tokens
    return StepRecord(
        phase="prefill" if mode.is_prefill else "decode",
        requested_mode=mode.requested,
        effective_mode=mode.effective,
        fallback=mode.fallback,
        bucket=mode.running_tokens if key is not None else None,
        live_rows=mode.scheduled_tokens,
        padded_rows=mode.running_tokens - mode.scheduled_tokens,
        graph_key=None if key is None else str(key),
    )
