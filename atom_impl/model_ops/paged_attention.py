"""Attention over the paged cache as tensor code: what a step computes, without asking where its metadata came from.

Two public faults live here. A launch planned from host lengths is frozen by a recording: one split where the live
step needs four. And a pad row, or a slot past a request's length, holds NaN, which a weight of zero does not remove
(0 * NaN). Decode therefore reads device tensors only, its shapes follow the table's width, and masked values are
replaced, not scaled.
"""

from __future__ import annotations

import torch

from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.utils.forward_context import AttentionMetaData

#: Queries of a prompt that are attended at once: bounds the score matrix of a long prompt.
QUERY_CHUNK = 512


def decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: KVCacheTensor, meta: AttentionMetaData, scale: float
) -> torch.Tensor:
    """One decode step: `q` [rows, heads, head dim], `k` and `v` [rows, kv heads, head dim]; returns q's shape.

    Row r is query r % max_seqlen_q of request r // max_seqlen_q. A row at or past `live_rows` stores nothing and
    comes out as zeros, whatever its metadata holds. May be recorded: nothing is read on the host.
    """
    requests, queries = meta.block_tables.shape[0], meta.max_seqlen_q
    check_decode_shapes(q, meta)
    live = torch.arange(q.shape[0], device=q.device) < meta.live_rows
    kv.write(k, v, meta.slot_mapping, live)
    keys, values = kv.gather(meta.block_tables)
    visible = _visible_in_decode(meta, live.view(requests, queries), keys.shape[1])
    out = attend(q.view(requests, queries, *q.shape[1:]), keys, values, visible, scale)
    return out.reshape(q.shape)


def prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: KVCacheTensor, meta: AttentionMetaData, scale: float
) -> torch.Tensor:
    """One prefill step, request by request over its own cached and new keys; rows past the last request are zeros.

    Planned from `seq_lens_q` and `seq_lens_k` on the host, so it runs as a region and is never recorded.
    """
    lens_q, lens_k = _prefill_lengths(q, kv, meta)
    rows = sum(lens_q)
    kv.write(k[:rows], v[:rows], meta.slot_mapping[:rows])
    out = torch.zeros_like(q)
    start = 0
    for request, (len_q, len_k) in enumerate(zip(lens_q, lens_k, strict=True)):
        blocks = -(-len_k // kv.block_size)
        keys, values = kv.gather(meta.block_tables[request : request + 1, :blocks])
        keys, values = keys[:, :len_k], values[:, :len_k]
        for first in range(0, len_q, QUERY_CHUNK):
            chunk = slice(start + first, start + min(first + QUERY_CHUNK, len_q))
            position = torch.arange(chunk.start, chunk.stop, device=q.device) + (len_k - len_q - start)
            visible = torch.arange(len_k, device=q.device) <= position[:, None]
            out[chunk] = attend(q[chunk][None], keys, values, visible[None], scale)[0]
        start += len_q
    return out


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """Grouped-query attention of `q` [b, queries, heads, d] over `keys`, `values` [b, span, kv heads, d].

    `visible` [b, queries, span] says which keys a query may see; a query that sees none yields zeros. Keys and values
    that no query of a request sees may hold NaN. Computed in float32 or wider, returned in q's dtype.
    """
    b, queries, heads, d = q.shape
    kv_heads, span = keys.shape[2], keys.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    grouped = q.to(wide).view(b, queries, kv_heads, heads // kv_heads, d).permute(0, 2, 3, 1, 4).flatten(2, 3)
    scores = torch.matmul(grouped * scale, keys.to(wide).permute(0, 2, 3, 1))
    scores = scores.view(b, kv_heads, -1, queries, span)
    scores = torch.where(visible[:, None, None], scores, float("-inf"))
    weights = torch.softmax(scores, dim=-1).flatten(2, 3)
    seen = visible.any(dim=1)[:, :, None, None]
    out = torch.matmul(weights, torch.where(seen, values.to(wide), 0.0).permute(0, 2, 1, 3))
    out = out.view(b, kv_heads, heads // kv_heads, queries, d).permute(0, 3, 1, 2, 4).reshape(b, queries, heads, d)
    sees_any = visible.any(dim=-1)[:, :, None, None]
    return torch.where(sees_any, out, 0.0).to(q.dtype)


def _visible_in_decode(meta: AttentionMetaData, live: torch.Tensor, span: int) -> torch.Tensor:
    """[requests, queries, span] bool: slot s of request i is seen by its query j up to the length that query j has."""
    queries = live.shape[1]
    query = torch.arange(queries, device=live.device)
    lengths = meta.context_lens.to(torch.int64)[:, None] - (queries - 1) + query
    slot = torch.arange(span, device=live.device)
    return (slot < lengths[:, :, None]) & live[:, :, None]


def check_decode_shapes(q: torch.Tensor, meta: AttentionMetaData) -> None:
    requests, rows = meta.block_tables.shape[0], q.shape[0]
    if rows != requests * meta.max_seqlen_q:
        raise ValueError(
            f"decode got {rows} rows for {requests} block tables of {meta.max_seqlen_q} queries each; "
            f"pad the step to {requests * meta.max_seqlen_q} rows or lay out metadata for its rows"
        )
    if meta.slot_mapping.shape[0] != rows or meta.context_lens.shape[0] != requests:
        raise ValueError(
            f"decode of {rows} rows and {requests} requests got {meta.slot_mapping.shape[0]} slots and "
            f"{meta.context_lens.shape[0]} lengths; slot_mapping has one entry a row, context_lens one a request"
        )


def _prefill_lengths(q: torch.Tensor, kv: KVCacheTensor, meta: AttentionMetaData) -> tuple[list[int], list[int]]:
    """The host lengths of a prefill, after checking that rows, slots and block tables can hold them."""
    lens_q, lens_k = meta.seq_lens_q, meta.seq_lens_k
    if lens_q is None or lens_k is None or len(lens_q) != len(lens_k):
        raise ValueError("prefill is planned on the host: set seq_lens_q and seq_lens_k, one length a request in each")
    if any(n < 1 or n > total for n, total in zip(lens_q, lens_k, strict=True)):
        raise ValueError(f"prefill got {lens_q} new of {lens_k} tokens; every request has 1 <= new <= total")
    rows, width = sum(lens_q), meta.block_tables.shape[1] * kv.block_size
    if rows > min(q.shape[0], meta.slot_mapping.shape[0]) or len(lens_q) > meta.block_tables.shape[0]:
        raise ValueError(
            f"prefill of {rows} tokens in {len(lens_q)} requests got {q.shape[0]} rows, "
            f"{meta.slot_mapping.shape[0]} slots and {meta.block_tables.shape[0]} block tables; "
            "each must hold at least as many"
        )
    if max(lens_k, default=0) > width:
        raise ValueError(
            f"a request of {max(lens_k)} tokens does not fit its block table of {width} slots; widen the table"
        )
    return lens_q, lens_k
