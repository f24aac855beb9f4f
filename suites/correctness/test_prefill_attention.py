"""Guards against a prefill that sees past its own position, or loses the prefix that an earlier chunk cached."""

from __future__ import annotations

import math

import pytest
import torch

from atom_impl.model_ops import paged_attention
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.utils.forward_context import AttentionMetaData, AttnState
from suites.correctness.attention_steps import BLOCK, DIM, HEADS, KV_HEADS, SCALE, Step, assert_close, bits, naive


def prefill(
    kv: KVCacheTensor, tables: torch.Tensor, qkv: list[torch.Tensor], spans: list[tuple[int, int]], pad: int = 0
) -> torch.Tensor:
    """Prefill tokens `spans[i] = (first, last + 1)` of each request from `qkv`, [requests, tokens, heads, d] each."""
    rows = [(i, p) for i, (first, end) in enumerate(spans) for p in range(first, end)]
    q, k, v = (torch.stack([x[i, p] for i, p in rows] + [torch.full_like(x[0, 0], math.nan)] * pad) for x in qkv)
    slots = [int(tables[i, p // BLOCK]) * BLOCK + p % BLOCK for i, p in rows] + [-1] * pad
    meta = AttentionMetaData(
        cu_seqlens_q=torch.zeros(1, dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        context_lens=torch.tensor([end for _, end in spans], dtype=torch.int32),
        block_tables=tables,
        live_rows=torch.tensor([len(rows)], dtype=torch.int32),
        state=AttnState.PREFILL_PREFIX,
        seq_lens_q=[end - first for first, end in spans],
        seq_lens_k=[end for _, end in spans],
    )
    return paged_attention.prefill(q, k, v, kv, meta, SCALE)


@pytest.fixture
def prompts() -> tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    kv = Step([1], width=11).kv
    tables = torch.randperm(12, generator=generator).view(3, 4).to(torch.int32)
    qkv = [torch.randn(3, 16, heads, DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return kv, tables, qkv


def causal(qkv: list[torch.Tensor], request: int, position: int) -> torch.Tensor:
    q, k, v = (x[request] for x in qkv)
    return naive(q[position], k[: position + 1], v[: position + 1])


@pytest.mark.parametrize("chunk", [512, 3])
def test_prefill_equals_causal_attention_computed_row_by_row(
    prompts: tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "QUERY_CHUNK", chunk)
    kv, tables, qkv = prompts
    ends = [7, 16, 1]
    out = prefill(kv, tables, qkv, [(0, end) for end in ends])
    assert_close(out, torch.stack([causal(qkv, i, p) for i, end in enumerate(ends) for p in range(end)]))


def test_a_prompt_in_two_chunks_sees_its_cached_prefix(
    prompts: tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]],
) -> None:
    kv, tables, qkv = prompts
    prefill(kv, tables, qkv, [(0, 5), (0, 8), (0, 1)])
    out = prefill(kv, tables, qkv, [(5, 11), (8, 9), (1, 16)])
    rows = [(0, p) for p in range(5, 11)] + [(1, 8)] + [(2, p) for p in range(1, 16)]
    assert_close(out, torch.stack([causal(qkv, i, p) for i, p in rows]))


def test_pad_rows_of_a_prefill_are_zeros_and_change_no_bit(
    prompts: tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]],
) -> None:
    kv, tables, qkv = prompts
    spans = [(0, 7), (0, 3), (0, 1)]
    plain, cache = prefill(kv, tables, qkv, spans), kv.k_cache.clone()
    padded = prefill(kv, tables, qkv, spans, pad=5)
    assert torch.equal(bits(padded[:11]), bits(plain))
    assert torch.equal(bits(padded[11:]), torch.zeros_like(bits(padded[11:])))
    assert torch.equal(kv.k_cache, cache)


def test_decode_after_prefill_equals_a_longer_prefill(
    prompts: tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]],
) -> None:
    kv, tables, qkv = prompts
    prefill(kv, tables, qkv, [(0, 4), (0, 8), (0, 11)])
    last = [4, 8, 11]
    q, k, v = (torch.stack([x[i, p] for i, p in enumerate(last)]) for x in qkv)
    slots = torch.tensor([int(tables[i, p // BLOCK]) * BLOCK + p % BLOCK for i, p in enumerate(last)])
    lens = torch.tensor([p + 1 for p in last], dtype=torch.int32)
    meta = AttentionMetaData(lens, slots, lens, tables, torch.tensor([3], dtype=torch.int32))
    out = paged_attention.decode(q, k, v, kv, meta, SCALE)
    assert_close(out, torch.stack([causal(qkv, i, p) for i, p in enumerate(last)]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_lens_q": None}, "planned on the host"),
        ({"seq_lens_q": [0, 3]}, "1 <= new <= total"),
        ({"seq_lens_q": [6, 3]}, "1 <= new <= total"),
        ({"seq_lens_q": [5, 9]}, "14 tokens in 2 requests got 2 rows"),
        ({"seq_lens_q": [1, 1], "seq_lens_k": [5, 17]}, "17 tokens does not fit its block table of 16 slots"),
    ],
)
def test_host_lengths_that_cannot_be_are_refused(changes: dict[str, list[int] | None], message: str) -> None:
    step = Step([5, 9])
    meta = step.metadata()
    for name, value in {"seq_lens_k": [5, 9], **changes}.items():
        setattr(meta, name, value)
    with pytest.raises(ValueError, match=message):
        paged_attention.prefill(step.q, step.k, step.v, step.kv, meta, SCALE)
