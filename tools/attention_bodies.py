"""Times the torch and the Triton body of decode attention on this GPU, as a recorded graph serves them.

A body that is right can still cost what the longest table costs, whatever the lengths: the torch body gathers every
slot that a table could hold. Each figure is one step of several layers, each with a cache of its own: replayed from a
graph that was recorded at length 1, and launched without one. Beside it, what a plain copy reaches on this GPU.

    python -m tools.attention_bodies --out results/records/<gpu>/paged_decode_bodies.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atom_impl.model_ops import paged_attention, triton_attention
from atom_impl.model_ops.kv_cache import KVCacheTensor, allocate_kv_cache
from atom_impl.utils.forward_context import AttentionMetaData
from harness.machine import fingerprint

LAYERS, BLOCK_SIZE, CAPACITY = 8, 16, 4096
MODELS = {"smollm2-135m": (9, 3, 64), "llama-8b": (32, 8, 128)}
BATCHES = (1, 8, 64)
LENGTHS = (128, 1024, 4096)
BODIES: dict[str, Callable[..., torch.Tensor]] = {
    "torch": paged_attention.decode,
    "triton": triton_attention.decode,
}
WARM_REPLAYS, TIMED_REPLAYS = 5, 30


@dataclass
class Step:
    """Static tensors of one decode step, `LAYERS` caches of random content, and tables in shuffled order."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    meta: AttentionMetaData
    caches: dict[str, KVCacheTensor]

    @classmethod
    def make(cls, model: str, batch: int) -> Step:
        heads, kv_heads, head_dim = MODELS[model]
        width = CAPACITY // BLOCK_SIZE
        with torch.device("cuda"):
            caches = allocate_kv_cache(
                map(str, range(LAYERS)),
                num_blocks=batch * width,
                block_size=BLOCK_SIZE,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                dtype=torch.bfloat16,
                device="cuda",
            )
            for cache in caches.values():
                cache.k_cache.normal_()
                cache.v_cache.normal_()
            q, k, v = (torch.randn(batch, n, head_dim, dtype=torch.bfloat16) for n in (heads, kv_heads, kv_heads))
            lengths = torch.ones(batch, dtype=torch.int32)
            tables = torch.randperm(batch * width).view(batch, width).to(torch.int32)
            slots = torch.zeros(batch, dtype=torch.int64)
            live = torch.full((1,), batch, dtype=torch.int32)
        return cls(q, k, v, AttentionMetaData(lengths, slots, lengths, tables, live), caches)

    def set_length(self, length: int) -> None:
        self.meta.context_lens.fill_(length)
        last = self.meta.block_tables[:, (length - 1) // BLOCK_SIZE].long()
        self.meta.slot_mapping.copy_(last * BLOCK_SIZE + (length - 1) % BLOCK_SIZE)

    def run(self, body: Callable[..., torch.Tensor]) -> torch.Tensor:
        scale = self.q.shape[2] ** -0.5
        outs = [body(self.q, self.k, self.v, cache, self.meta, scale) for cache in self.caches.values()]
        return outs[-1]

    def kv_bytes(self, length: int) -> int:
        cache = next(iter(self.caches.values())).k_cache
        return 2 * self.q.shape[0] * length * cache.shape[2] * cache.shape[3] * cache.element_size()


def recorded(step: Step, body: Callable[..., torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of all layers, recorded at length 1, and its last layer's output."""
    step.set_length(1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step.run(body)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step.run(body)
    return graph, out


def layer_us(launch: Callable[[], object]) -> list[float]:
    """Quartiles of the microseconds that a layer takes between two events around the whole step."""
    for _ in range(WARM_REPLAYS):
        launch()
    samples = []
    for _ in range(TIMED_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1000 / LAYERS)
    return [round(value, 2) for value in statistics.quantiles(samples, n=4)]


def copy_gb_per_s() -> float:
    """Bytes read and written by a copy of 2 GiB, over its time."""
    source = torch.zeros(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_us = layer_us(partial(target.copy_, source))[1] * LAYERS
    return round(2 * source.numel() / copy_us / 1000)


def measure(model: str, batch: int) -> list[dict[str, Any]]:
    """One row for each length: both bodies, how far their outputs are apart, and the rate at which keys are read."""
    step = Step.make(model, batch)
    graphs = {name: recorded(step, body) for name, body in BODIES.items()}
    rows = []
    for length in LENGTHS:
        step.set_length(length)
        row: dict[str, Any] = {"model": model, "batch": batch, "length": length, "capacity": CAPACITY}
        for name, (graph, _) in graphs.items():
            row[f"{name}_replay_us"] = layer_us(graph.replay)
            row[f"{name}_eager_us"] = layer_us(partial(step.run, BODIES[name]))
        outs = [out.double() for _, out in graphs.values()]
        row["relative_l2_between"] = float((outs[0] - outs[1]).norm() / outs[0].norm())
        row["triton_kv_gb_per_s"] = round(step.kv_bytes(length) / row["triton_replay_us"][1] / 1000)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the bodies of decode attention in a recorded graph.")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    wanted = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("torch sees no GPU here; the bodies are timed on one", file=sys.stderr)
        return 4
    torch.manual_seed(0)
    rows = [row for model in MODELS for batch in BATCHES for row in measure(model, batch)]
    record = {
        "command": f"python -m tools.attention_bodies --out results/records/<gpu>/{wanted.out.name}",
        "unit": f"us of one of {LAYERS} layers: first quartile, median, third quartile of {TIMED_REPLAYS} steps",
        "cache_dtype": "bfloat16",
        "copy_gb_per_s": copy_gb_per_s(),
        "rows": rows,
        "machine": fingerprint(),
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
