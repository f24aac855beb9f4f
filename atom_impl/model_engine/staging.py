"""The fixed buffers that every recording reads, and the copies that fill them each step.

Two faults live here. A tail that is not rewritten lets last step's rows leak into this one. And a pinned buffer that is
rewritten while its copy is still in flight gives the GPU a mixture of two steps: the gate below waits for the copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from atom_impl.device.software import CopyEvent, DelayedCopies, host
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.batch_arrays import BatchArrays
from atom_impl.utils.forward_context import AttentionMetaData, AttnState
from atom_impl.utils.forward_mode import ForwardMode
from atom_impl.utils.step_ledger import CopyKind, StepRecord


@dataclass(frozen=True)
class Tail:
    """What pad rows hold. `None` leaves what the previous step wrote there."""

    token_id: int | None = 0
    position: int | None = 0
    slot: int | None = -1
    context_len: int | None = 0
    block: int | None = 0


class CpuGpuBuffer:
    """A host buffer (pinned where there is a GPU) and the device buffer that recordings read."""

    copies: DelayedCopies | None = None
    name = ""

    def __init__(self, *size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.cpu = host(torch.zeros(*size, dtype=dtype, pin_memory=device.type == "cuda"))
        self.np: np.ndarray = self.cpu.numpy()
        self.gpu = torch.zeros(*size, dtype=dtype, device=device)

    def copy_to_gpu(self, count: int, record: StepRecord) -> torch.Tensor:
        """Copy the first `count` rows and return them on the device."""
        target = self.gpu[:count]
        if self.copies is None:
            target.copy_(self.cpu[:count], non_blocking=True)
        else:
            self.copies.copy(target, self.cpu[:count], self.name)
        record.copied(CopyKind.STAGING, target.nbytes)
        return target


class StagingBuffers:
    """Input ids, positions and attention metadata of one step, and the `outputs` that request graphs write."""

    _step: BatchArrays  # of the step that is being staged

    def __init__(
        self,
        *,
        max_rows: int,
        max_requests: int,
        max_model_len: int,
        block_size: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.max_rows, self.max_requests, self.block_size = max_rows, max_requests, block_size
        self.max_model_len = max_model_len
        self.table_width = -(-max_model_len // block_size)
        self.tail = Tail()

        def buffer(*size: int, dtype: torch.dtype) -> CpuGpuBuffer:
            return CpuGpuBuffer(*size, dtype=dtype, device=device)

        self.input_ids = buffer(max_rows, dtype=torch.int64)
        self.positions = buffer(max_rows, dtype=torch.int64)
        self.slot_mapping = buffer(max_rows, dtype=torch.int64)
        self.context_lens = buffer(max_requests, dtype=torch.int32)
        self.cu_seqlens_q = buffer(max_requests + 1, dtype=torch.int32)
        self.block_tables = buffer(max_requests, self.table_width, dtype=torch.int32)
        self.live_rows = buffer(1, dtype=torch.int32)
        self.outputs = torch.zeros(max_rows, hidden_size, dtype=dtype, device=device)
        self._uploaded: torch.cuda.Event | CopyEvent | None = torch.cuda.Event() if device.type == "cuda" else None

    def delay_copies(self, copies: DelayedCopies) -> None:
        """Let every upload of this object run late on a CPU, so that a step that skips the gate is found out."""
        if self.outputs.device.type != "cpu":
            raise ValueError(
                f"delay_copies() on {self.outputs.device}: it models a GPU's copies on a CPU; "
                "a GPU's are late by themselves"
            )
        self._uploaded = copies.event()
        for name, buffer in vars(self).items():
            if isinstance(buffer, CpuGpuBuffer):
                buffer.copies, buffer.name = copies, name

    def layout(self) -> list[dict[str, object]]:
        """What is copied per step, for closed forms: each buffer's unit of growth and the bytes of one unit."""
        units = [
            (self.input_ids, "input_ids", "row"),
            (self.positions, "positions", "row"),
            (self.slot_mapping, "slot_mapping", "row"),
            (self.context_lens, "context_lens", "request"),
            (self.cu_seqlens_q, "cu_seqlens_q", "request+1"),
            (self.block_tables, "block_tables", "request"),
            (self.live_rows, "live_rows", "step"),
        ]
        return [{"name": name, "per": per, "bytes": buffer.gpu[:1].nbytes} for buffer, name, per in units]

    def stage(
        self, batch: ScheduledBatch, mode: ForwardMode, record: StepRecord
    ) -> tuple[torch.Tensor, torch.Tensor, AttentionMetaData]:
        """Write the step and its tail, upload both, and return (ids, positions, metadata) as views of the device
        buffers.
        """
        self._check(mode)
        self._step = BatchArrays.of(
            batch, max_model_len=self.max_model_len, block_size=self.block_size, table_width=self.table_width
        )
        if self._uploaded is not None:
            self._uploaded.synchronize()
        self._write_rows(batch, mode)
        self._write_requests(batch, mode)
        rows, requests = mode.running_tokens, mode.running_bs
        metadata = AttentionMetaData(
            cu_seqlens_q=self.cu_seqlens_q.copy_to_gpu(requests + 1, record),
            slot_mapping=self.slot_mapping.copy_to_gpu(rows, record),
            context_lens=self.context_lens.copy_to_gpu(requests, record),
            block_tables=self.block_tables.copy_to_gpu(requests, record),
            live_rows=self.live_rows.copy_to_gpu(1, record),
            max_seqlen_q=mode.max_seqlen_q,
            max_seqlen_k=max(batch.context_lens),
            state=_state(batch),
            seq_lens_q=[len(tokens) for tokens in batch.token_ids] if batch.is_prefill else None,
            seq_lens_k=list(batch.context_lens) if batch.is_prefill else None,
        )
        ids = self.input_ids.copy_to_gpu(rows, record)
        positions = self.positions.copy_to_gpu(rows, record)
        if self._uploaded is not None:
            self._uploaded.record()
        return ids, positions, metadata

    def _check(self, mode: ForwardMode) -> None:
        if mode.running_tokens > self.max_rows or mode.running_bs > self.max_requests:
            raise ValueError(
                f"a step of {mode.running_bs} requests and {mode.running_tokens} rows; this engine was built for "
                f"{self.max_requests} requests (max_num_seqs) and {self.max_rows} rows (max_num_batched_tokens)"
            )

    def _write_rows(self, batch: ScheduledBatch, mode: ForwardMode) -> None:
        step, live = self._step, self._step.token_ids.size
        self.input_ids.np[:live] = step.token_ids
        self.positions.np[:live] = step.positions
        self.slot_mapping.np[:live] = step.slots
        self.live_rows.np[0] = live
        padded = slice(live, mode.running_tokens)
        _fill(self.input_ids, padded, self.tail.token_id)
        _fill(self.positions, padded, self.tail.position)
        _fill(self.slot_mapping, padded, self.tail.slot)

    def _write_requests(self, batch: ScheduledBatch, mode: ForwardMode) -> None:
        step, live = self._step, batch.requests
        self.context_lens.np[:live] = step.lengths
        self.cu_seqlens_q.np[0] = 0
        self.cu_seqlens_q.np[1 : live + 1] = step.ends
        self.cu_seqlens_q.np[live + 1 : mode.running_bs + 1] = step.ends[-1]  # empty sequences
        self.block_tables.np[:live] = step.tables
        padded = slice(live, mode.running_bs)
        _fill(self.context_lens, padded, self.tail.context_len)
        _fill(self.block_tables, padded, self.tail.block)


def _fill(buffer: CpuGpuBuffer, where: slice, value: int | None) -> None:
    if value is not None:
        buffer.np[where] = value


def _state(batch: ScheduledBatch) -> AttnState:
    if not batch.is_prefill:
        return AttnState.DECODE
    cached = any(length > len(tokens) for tokens, length in zip(batch.token_ids, batch.context_lens, strict=True))
    return AttnState.PREFILL_PREFIX if cached else AttnState.PREFILL_NATIVE
