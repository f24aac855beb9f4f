"""Steps for attention over a paged cache, and their answer worked out row by row with nothing shared."""

from __future__ import annotations

import math

import torch

from atom_impl.model_ops import paged_attention
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.utils.forward_context import AttentionMetaData

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 16, 4
SCALE = DIM**-0.5
INT32_MAX = 2**31 - 1


class Step:
    """Requests of given lengths in shuffled blocks of a cache full of random keys, and one decode step for them."""

    def __init__(self, lengths: list[int], *, queries: int = 1, pad: int = 0, seed: int = 0, width: int = 4) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.lengths, self.queries, self.pad = lengths, queries, pad
        requests = len(lengths) + pad
        self.kv = self._cache((requests + 1) * width)
        tables = torch.randperm(self.kv.num_blocks, generator=self.generator)[: requests * width]
        self.tables = tables.view(requests, width).to(torch.int32)
        self.lens = torch.tensor(lengths + [0] * pad, dtype=torch.int32)
        self.slots = torch.tensor(
            [self.slot(i, n - queries + j) for i, n in enumerate(lengths) for j in range(queries)]
            + [-1] * pad * queries
        )
        rows = requests * queries
        self.q = self._normal(rows, HEADS, DIM)
        self.k, self.v = self._normal(rows, KV_HEADS, DIM), self._normal(rows, KV_HEADS, DIM)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def _cache(self, blocks: int) -> KVCacheTensor:
        shape = (blocks + 1, BLOCK, KV_HEADS, DIM)
        return KVCacheTensor(self._normal(*shape), self._normal(*shape))

    def slot(self, request: int, position: int) -> int:
        return int(self.tables[request, position // BLOCK]) * BLOCK + position % BLOCK

    @property
    def live(self) -> int:
        return len(self.lengths) * self.queries

    def metadata(self) -> AttentionMetaData:
        return AttentionMetaData(
            cu_seqlens_q=torch.arange(len(self.lens) + 1, dtype=torch.int32) * self.queries,
            slot_mapping=self.slots,
            context_lens=self.lens,
            block_tables=self.tables,
            live_rows=torch.tensor([self.live], dtype=torch.int32),
            max_seqlen_q=self.queries,
        )

    def run(self, device: str = "cpu") -> torch.Tensor:
        kv = KVCacheTensor(self.kv.k_cache.to(device), self.kv.v_cache.to(device))
        q, k, v = (x.to(device) for x in (self.q, self.k, self.v))
        out = paged_attention.decode(q, k, v, kv, moved(self, device), SCALE)
        self.kv = KVCacheTensor(kv.k_cache.cpu(), kv.v_cache.cpu())
        return out.cpu()

    def expected(self) -> torch.Tensor:
        """Row by row in float64, from a cache that is a dictionary: nothing shared with the code under test."""
        keys: dict[int, torch.Tensor] = {}
        values: dict[int, torch.Tensor] = {}
        for row in range(self.live):
            keys[int(self.slots[row])], values[int(self.slots[row])] = self.k[row], self.v[row]
        flat_k, flat_v = self.kv.k_cache.flatten(0, 1), self.kv.v_cache.flatten(0, 1)
        rows = []
        for row in range(self.live):
            request, query = divmod(row, self.queries)
            seen = [self.slot(request, p) for p in range(self.lengths[request] - self.queries + 1 + query)]
            k = torch.stack([keys.get(s, flat_k[s]) for s in seen])
            v = torch.stack([values.get(s, flat_v[s]) for s in seen])
            rows.append(naive(self.q[row], k, v))
        return torch.stack(rows + [torch.zeros(HEADS, DIM, dtype=torch.float64)] * (self.pad * self.queries))


def moved(step: Step, device: str) -> AttentionMetaData:
    meta = step.metadata()
    for name in ("cu_seqlens_q", "slot_mapping", "context_lens", "block_tables", "live_rows"):
        setattr(meta, name, getattr(meta, name).to(device))
    return meta


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One row: q [heads, d] over k, v [n, kv heads, d]."""
    heads = []
    for head in range(HEADS):
        kv_head = head // (HEADS // KV_HEADS)
        scores = [float(q[head].double() @ key[kv_head].double()) / math.sqrt(DIM) for key in k]
        weights = [math.exp(score - max(scores)) for score in scores]
        mixed = sum(w * value[kv_head].double() for w, value in zip(weights, v, strict=True))
        heads.append(mixed / sum(weights))
    return torch.stack(heads)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = (found.double() - expected).norm() / expected.norm().clamp_min(1e-30)
    assert error < 1e-6, f"relative L2 error {float(error):.2e}"


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32)
