"""Attention that plans from the longest length on the host: a request graph keeps the plan of its capture."""

from dataclasses import replace
from typing import Any

from atom_impl.model_ops import paged_attention
from harness.mutants import Mutant, wrap


def by_length(decode: Any, q: Any, k: Any, v: Any, kv: Any, meta: Any, scale: float) -> Any:
    blocks = -(-meta.max_seqlen_k // kv.block_size)
    return decode(q, k, v, kv, replace(meta, block_tables=meta.block_tables[:, :blocks]), scale)


def by_width(decode: Any, q: Any, k: Any, v: Any, kv: Any, meta: Any, scale: float) -> Any:
    blocks = meta.block_tables.shape[1]
    return decode(q, k, v, kv, replace(meta, block_tables=meta.block_tables[:, :blocks]), scale)


MUTANT = Mutant(
    kind="FROZEN",
    variant="blocks from a host length",
    changes="decode reads as many blocks as the longest length on the host needs",
    control_is="the same slice with the table's constant width.",
    caught_by=("G1", "G1.first"),
    says="Bucket, step and row, and that only contexts above a length are wrong: a FROZEN host value.",
    plant=lambda: wrap(paged_attention, "decode", by_length),
    control=lambda: wrap(paged_attention, "decode", by_width),
    quick=True,
    gpu=True,
)
