"""The side channel through which a recorded forward sees the live step.

A recorded graph takes no arguments, so everything that changes per step travels here. The public failures all come
from a context that outlived its step: a raising forward that left it set, a field read once and baked. It is therefore
reset in a
`finally`, and nothing may close over it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import torch

from atom_impl.utils.forward_mode import ForwardMode
from atom_impl.utils.step_ledger import StepRecord

if TYPE_CHECKING:
    from atom_impl.config import Config
    from atom_impl.model_ops.kv_cache import KVCacheTensor

__all__ = [
    "AttentionMetaData",
    "AttnState",
    "Context",
    "DPMetadata",
    "ForwardContext",
    "ForwardMode",
    "SpecDecodeMetadata",
    "forward_context",
    "get_forward_context",
    "reset_forward_context",
    "set_forward_context",
    "thread_forward_context",
    "token_graph_action",
]


class AttnState(Enum):
    DECODE = "decode"
    PREFILL_NATIVE = "prefill_native"  # whole prompts
    PREFILL_PREFIX = "prefill_prefix"  # prompts whose first tokens are cached already


@dataclass
class AttentionMetaData:
    """What attention reads of a step. Tensors are views of staging buffers, so their addresses are fixed.

    Decode has `max_seqlen_q` rows a request: row r belongs to request r // max_seqlen_q.
    """

    cu_seqlens_q: torch.Tensor  # [requests + 1] int32
    slot_mapping: torch.Tensor  # [rows] int64; -1: write nothing
    context_lens: torch.Tensor  # [requests] int32, cached and new tokens together
    block_tables: torch.Tensor  # [requests, blocks of the longest sequence] int32
    live_rows: torch.Tensor  # [1] int32: rows that belong to a request; the others are padding
    max_seqlen_q: int = 1
    max_seqlen_k: int = 0
    state: AttnState = AttnState.DECODE
    seq_lens_q: list[int] | None = None  # host copies, for launches that are planned on the host (prefill)
    seq_lens_k: list[int] | None = None


@dataclass
class Context:
    """The most frequently read facts of a step.

    `running_bs` (padded sequences) chooses the graph; `running_tokens` (padded rows) is what a layer's tensors have. A
    ragged step cannot turn one into the other, hence both.
    """

    positions: torch.Tensor
    is_prefill: bool = False
    batch_size: int = 0
    running_bs: int = 0
    running_tokens: int = 0
    is_draft: bool = False


@dataclass
class DPMetadata:
    """Token counts of all data-parallel ranks, on the host: a graph cannot read a tensor to size a collective."""

    tokens_across_dp: list[int]

    @property
    def max_tokens_across_dp(self) -> int:
        return max(self.tokens_across_dp)


@dataclass
class SpecDecodeMetadata:
    """Speculative decoding: the tokens under test and where their logits are."""

    draft_token_ids: torch.Tensor
    num_spec_steps: int
    target_logits_indices: torch.Tensor
    bonus_logits_indices: torch.Tensor


@dataclass
class ForwardContext:
    no_compile_layers: Mapping[str, Any] = field(default_factory=dict)
    attn_metadata: AttentionMetaData | dict[str, Any] = field(default_factory=dict)
    kv_cache_data: Mapping[str, KVCacheTensor] = field(default_factory=dict)
    context: Context | None = None
    dp_metadata: DPMetadata | None = None
    spec_decode_metadata: SpecDecodeMetadata | None = None
    #: what the model's token graphs do in this step: run plainly, record, or replay
    tr_graph: Literal["record", "replay"] | None = None
    #: the step's ledger record, filled by whoever copies, replays or compiles
    record: StepRecord | None = None
    #: the settled shape of the step, as `ForwardMode.decide` gave it
    forward_mode: ForwardMode | None = None


_process: ForwardContext | None = None
_thread = threading.local()


def get_forward_context() -> ForwardContext:
    """The live step's context; a thread's own one first. Raises `RuntimeError` when none was ever set."""
    current: ForwardContext | None = getattr(_thread, "context", None) or _process
    if current is None:
        raise RuntimeError("the forward context is not set; call set_forward_context() before the model runs")
    return current


def token_graph_action() -> tuple[Literal["record", "replay"] | None, Literal["prefill", "decode"]]:
    """What a recording unit does now, and for which phase. Outside a step it runs plainly."""
    current: ForwardContext | None = getattr(_thread, "context", None) or _process
    if current is None or current.context is None:
        return None, "decode"
    return current.tr_graph, "prefill" if current.context.is_prefill else "decode"


def set_forward_context(
    attn_metadata: AttentionMetaData | dict[str, Any],
    atom_config: Config,
    context: Context,
    num_tokens_across_dp: list[int] | None = None,
    spec_decode_metadata: SpecDecodeMetadata | None = None,
    *,
    kv_cache_data: Mapping[str, KVCacheTensor] | None = None,
    tr_graph: Literal["record", "replay"] | None = None,
    record: StepRecord | None = None,
    mode: ForwardMode | None = None,
) -> None:
    """Install the context of the step that is about to run. Pair it with `reset_forward_context` in a `finally`."""
    global _process
    if tr_graph not in (None, "record", "replay"):
        raise ValueError(f"tr_graph is {tr_graph!r}; it is None, 'record' or 'replay'")
    _process = ForwardContext(
        no_compile_layers=atom_config.compilation_config.static_forward_context,
        attn_metadata=attn_metadata,
        kv_cache_data=kv_cache_data or {},
        context=context,
        dp_metadata=DPMetadata(list(num_tokens_across_dp)) if num_tokens_across_dp else None,
        spec_decode_metadata=spec_decode_metadata,
        tr_graph=tr_graph,
        record=record,
        forward_mode=mode,
    )


def reset_forward_context() -> None:
    """Replace the context by an empty one, so that nothing of a finished step can be read by the next."""
    global _process
    _process = ForwardContext()


@contextmanager
def forward_context(*args: Any, **kwargs: Any) -> Iterator[ForwardContext]:
    """`set_forward_context` for the length of a block; reset also when the forward raises."""
    set_forward_context(*args, **kwargs)
    try:
        yield get_forward_context()
    finally:
        reset_forward_context()


@contextmanager
def thread_forward_context(context: ForwardContext) -> Iterator[ForwardContext]:
    """`context` for this thread alone: micro-batches that overlap each have their own."""
    before = getattr(_thread, "context", None)
    _thread.context = context
    try:
        yield context
    finally:
        _thread.context = before
