"""A whole engine session in a hundred lines of torch: one attention layer over a paged cache, static buffers, buckets.

The probes' own tests need an engine that is right, and then the same engine with exactly one fault. Every place where
a fault of the field lives is one small method here, to be overridden.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from harness.cells import Cell
from harness.coverage import POLICY
from harness.engines.base import Arm, Dispatch, EngineSession, PadFill, Phase, SessionSpec, StepBatch, StepResult
from harness.profile import MODES

VOCAB, HIDDEN, LAYERS = 256, 32, 2
OUTPUT_BYTES = {torch.float32: 4, torch.bfloat16: 2}


class Weights:
    """Seeded weights; `emb` has one extra row of NaN for pad rows."""

    def __init__(self, dtype: torch.dtype) -> None:
        seeded = torch.Generator().manual_seed(7)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            drawn: torch.Tensor = torch.randn(rows, columns, generator=seeded) / columns**0.5
            return drawn.to(dtype)

        self.emb = torch.cat([matrix(VOCAB, HIDDEN), torch.full((1, HIDDEN), torch.nan, dtype=dtype)])
        self.qkv = [matrix(3 * HIDDEN, HIDDEN) for _ in range(LAYERS)]
        self.up = [matrix(2 * HIDDEN, HIDDEN) for _ in range(LAYERS)]
        self.down = [matrix(HIDDEN, 2 * HIDDEN) for _ in range(LAYERS)]

    def double(self) -> Weights:
        twin = Weights.__new__(Weights)
        twin.emb = self.emb.double()
        twin.qkv, twin.up, twin.down = ([w.double() for w in part] for part in (self.qkv, self.up, self.down))
        return twin


class Inputs:
    """The static buffers of one bucket: what a recording reads."""

    def __init__(self, rows: int, width: int) -> None:
        self.ids = torch.zeros(rows, dtype=torch.long)
        self.positions = torch.zeros(rows, dtype=torch.long)
        self.slots = torch.full((rows,), -1, dtype=torch.long)
        self.tables = torch.zeros(rows, width, dtype=torch.long)
        self.live = torch.zeros(rows, dtype=torch.bool)


class ToySession(EngineSession):
    """Right in every respect. A planted fault overrides one method."""

    def __init__(self, cell: Cell, spec: SessionSpec) -> None:
        self.cell, self.spec, self.dtype = cell, spec, getattr(torch, spec.dtype)
        self.prefill = cell["workload"] == "prefill"
        self.mode = MODES[cell["mode"]][self.prefill]
        self.sizes = sorted(spec.prefill_sizes if self.prefill else cell["ladder"])
        self.width = -(-spec.max_model_len // spec.block_size)
        self.weights = Weights(self.dtype)
        self.compiled_weights = self.weights
        # One block more than the cache has: scratch, for the rows that belong to nobody.
        shape = (spec.num_blocks + 1, spec.block_size, HIDDEN)
        self.caches = [torch.zeros(shape, dtype=self.dtype) for _ in range(2 * LAYERS)]
        self.inputs = {n: Inputs(n, self.width) for n in self.sizes}
        self.outputs = {n: torch.zeros(n, HIDDEN, dtype=self.dtype) for n in self.sizes}
        self.last_arm_inputs: dict[int, Inputs] = {}
        self.steps = 0

    # -- what the harness asks -------------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        return VOCAB

    def capture(self) -> Mapping[str, Any]:
        recorded = self.sizes if self.mode != "NONE" else []
        regions = LAYERS if self.mode == "TR_HYBRID" else 0
        pieces = LAYERS + 1
        compiles = {"num_inductor_compiles": 0, "num_piecewise_graphs_seen": 0}
        if self.cell["level"] == 3:
            compiles = {
                "num_piecewise_graphs_seen": pieces + LAYERS,
                "num_piecewise_capturable_graphs_seen": pieces,
                "num_inductor_compiles": 3,
                "num_cache_hits": 0,
                "num_piece_reuses": pieces - 3,
            }
        return {
            "buckets": {"prefill" if self.prefill else "decode": list(recorded)},
            "segments": dict.fromkeys(recorded, regions + 1),
            "regions": dict.fromkeys(recorded, regions),
            "nodes": dict.fromkeys(recorded, 12),
            "pool_bytes": 1_080_000 if recorded else 0,
            "pool_bytes_largest": 1_000_000 if recorded else 0,
            "compiles": compiles,
        }

    def step(self, batch: StepBatch, arm: Arm, *, rows: int | None = None, pad: PadFill = PadFill.ENGINE) -> StepResult:
        bucket = None
        if arm is Arm.R and self.mode != "NONE" and batch.phase.value == self.cell["workload"]:
            bucket = self.bucket_of(batch)
        padded = bucket or rows or batch.rows
        inputs = self.staged(batch, padded, pad, bucket)
        if arm is Arm.REF:
            caches = [cache.double() for cache in self.caches]
            hidden = self.forward(self.weights.double(), caches, inputs, compiled=False)
        elif arm is Arm.E:
            hidden = self.forward(self.weights, self.caches, inputs, compiled=False)
        else:
            hidden = self.forward(self.compiled_weights, self.caches, inputs, compiled=True)
        if bucket is not None:
            self.write_output(bucket, hidden)
            hidden = self.outputs[bucket]
        live = self.sliced(hidden, batch)
        weights = self.weights.double() if arm is Arm.REF else self.weights
        logits = self.logits(live, weights, arm)
        self.steps += 1
        return StepResult(live, logits, self.claim(batch, arm, bucket, padded))

    def plan(self, phase: Phase, batch: int, rows: int) -> Dispatch:
        size = rows if self.prefill else batch
        bucket = self.bucket_for(size) if self.mode != "NONE" else None
        eager = self.mode != "NONE" and bucket is None
        declared = not eager or self.spec.eager_above_ladder
        mode = self.mode if bucket else "NONE"
        return Dispatch(phase, batch, rows, mode, bucket, POLICY if eager and declared else "", declared)

    def kv(self) -> Sequence[torch.Tensor]:
        return [cache[:-1] for cache in self.caches]

    def poison_outputs(self) -> None:
        for buffer in self.outputs.values():
            buffer.fill_(torch.nan)

    def synchronize(self) -> None:
        """A CPU has nothing to wait for."""

    def counters(self) -> Mapping[str, int | float]:
        return {"steps": self.steps, "compile.num_inductor_compiles": 0}

    def artefacts(self) -> Mapping[str, str]:
        return {"forward": "5b1d"}

    def expected(self) -> Mapping[str, Any]:
        return {
            "layers": LAYERS,
            "split_ops_per_layer": 1,
            "hidden_size": HIDDEN,
            "itemsize": OUTPUT_BYTES[self.dtype],
            "staging": [
                {"name": "ids", "per": "row", "bytes": 8},
                {"name": "tables", "per": "request", "bytes": 8 * self.width},
                {"name": "cu_seqlens", "per": "request+1", "bytes": 4},
                {"name": "live", "per": "step", "bytes": 4},
            ],
        }

    def close(self) -> None:
        self.inputs.clear()

    # -- where faults live -----------------------------------------------------------------------------------------

    def bucket_for(self, size: int) -> int | None:
        index = bisect_left(self.sizes, size)
        return self.sizes[index] if index < len(self.sizes) else None

    def bucket_of(self, batch: StepBatch) -> int | None:
        return self.bucket_for(batch.rows if self.prefill else len(batch.token_ids))

    def staged(self, batch: StepBatch, rows: int, pad: PadFill, bucket: int | None) -> Inputs:
        """The step's inputs: fresh buffers for arms without a graph, the bucket's own for a replay."""
        inputs = (
            self.inputs[bucket]
            if bucket is not None
            else self.last_arm_inputs.setdefault(rows, Inputs(rows, self.width))
        )
        fresh = Inputs(rows, self.width)
        at = 0
        for tokens, length, table in zip(batch.token_ids, batch.context_lens, batch.block_tables, strict=True):
            for token, position in zip(tokens, range(length - len(tokens), length), strict=True):
                fresh.ids[at], fresh.positions[at], fresh.live[at] = token, position, True
                fresh.tables[at, : len(table)] = torch.tensor(table)
                fresh.slots[at] = table[position // self.spec.block_size] * self.spec.block_size
                fresh.slots[at] += position % self.spec.block_size
                at += 1
        self.copy_inputs(inputs, fresh, at)
        self.fill_pad_rows(inputs, at, pad)
        return inputs

    def copy_inputs(self, inputs: Inputs, fresh: Inputs, live: int) -> None:
        for name in ("ids", "positions", "slots", "tables"):
            getattr(inputs, name)[:live] = getattr(fresh, name)[:live]
        inputs.live.copy_(fresh.live)

    def fill_pad_rows(self, inputs: Inputs, live: int, pad: PadFill) -> None:
        if pad is PadFill.PREVIOUS:
            return
        token = {PadFill.NAN_HIDDEN: VOCAB, PadFill.EXTREME: VOCAB - 1}.get(pad, 0)
        inputs.ids[live:] = token
        inputs.positions[live:] = self.spec.max_model_len - 1 if pad is PadFill.EXTREME else 0
        inputs.slots[live:] = 2**40 if pad is PadFill.EXTREME else -1
        inputs.tables[live:] = 0

    def forward(self, weights: Weights, caches: list[torch.Tensor], inputs: Inputs, *, compiled: bool) -> torch.Tensor:
        """[rows, HIDDEN]. The compiled form sums in another order, as a fused kernel does."""
        hidden = self.embed(weights, inputs)
        for layer in range(LAYERS):
            q, k, v = (hidden @ weights.qkv[layer].T).chunk(3, dim=1)
            self.write_cache(caches[2 * layer], k, inputs)
            self.write_cache(caches[2 * layer + 1], v, inputs)
            hidden = hidden + self.attention(q, caches[2 * layer], caches[2 * layer + 1], inputs)
            wide = torch.tanh(hidden @ weights.up[layer].T)
            if compiled:
                left, right = weights.down[layer].chunk(2, dim=1)
                hidden = hidden + (wide[:, HIDDEN:] @ right.T + wide[:, :HIDDEN] @ left.T)
            else:
                hidden = hidden + wide @ weights.down[layer].T
        return hidden

    def embed(self, weights: Weights, inputs: Inputs) -> torch.Tensor:
        return weights.emb[inputs.ids]

    def write_cache(self, cache: torch.Tensor, rows: torch.Tensor, inputs: Inputs) -> None:
        scratch = cache.shape[0] * self.spec.block_size - 1
        slots = torch.where(inputs.live, inputs.slots, scratch)
        cache[slots // self.spec.block_size, slots % self.spec.block_size] = rows

    def attention(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Each live row over the slots up to its own position; dead rows give zeros whatever they hold."""
        keys, values = k_cache[inputs.tables].flatten(1, 2), v_cache[inputs.tables].flatten(1, 2)
        reach = torch.arange(keys.shape[1]) <= inputs.positions[:, None]
        reach &= inputs.live[:, None]
        keys, values = (torch.where(reach[..., None], t, torch.zeros_like(t)) for t in (keys, values))
        scores = (keys * q[:, None, :]).sum(-1) / HIDDEN**0.5
        weights = torch.where(reach, scores, torch.full_like(scores, -1e30)).softmax(dim=1)
        mixed = (weights[..., None] * values).sum(1)
        return torch.where(inputs.live[:, None], mixed, torch.zeros_like(mixed))

    def write_output(self, bucket: int, hidden: torch.Tensor) -> None:
        self.outputs[bucket].copy_(hidden)

    def sliced(self, hidden: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        return hidden[: batch.rows]

    def logits(self, hidden: torch.Tensor, weights: Weights, arm: Arm) -> torch.Tensor:
        return hidden @ weights.emb[:VOCAB].T

    def claim(self, batch: StepBatch, arm: Arm, bucket: int | None, padded: int) -> dict[str, Any]:
        regions = LAYERS if self.mode == "TR_HYBRID" and bucket else 0
        requests = padded if batch.phase is Phase.DECODE else len(batch.token_ids)
        staging = 8 * padded + 8 * self.width * requests + 4 * (requests + 1) + 4
        copies = {"staging": {"count": 4, "bytes": staging}}
        if bucket:
            copies["output"] = {"count": 1, "bytes": bucket * HIDDEN * OUTPUT_BYTES[self.dtype]}
        above = "tokens_above_every_prefill_bucket" if self.prefill else "batch_above_the_ladder"
        return {
            "phase": batch.phase.value,
            "requested_mode": self.mode,
            "effective_mode": self.mode if bucket else "NONE",
            "fallback": above if arm is Arm.R and self.mode != "NONE" and not bucket else None,
            "bucket": bucket,
            "live_rows": batch.rows,
            "padded_rows": padded - batch.rows,
            "segments": regions + 1 if bucket else 0,
            "regions": regions,
            "copies": copies,
            "compiles": 0,
            "recompiles": 0,
        }


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Bits are compared within one thread count."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
