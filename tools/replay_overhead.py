"""What the replay path costs on top of the graphs it launches.

A step of 33 segments was slower than the same work in one graph by more than its launches explained, and nobody could
say whether the engine's bookkeeping or the graphs were to blame. Here the recordings of a real runner are replayed as a
step does it, and beside it in a bare loop over the very same graphs. On a CPU the graphs are software graphs: host and
device are one there, so the figures say what the bookkeeping costs and nothing about a GPU; they are CPU time of the
thread that does everything, which a busy machine leaves alone.

    python -m tools.replay_overhead --out results/records/<machine>/replay_overhead.json [--model NAME] [--level 0]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atom_impl.config import CompilationConfig, Config, CUDAGraphMode
from atom_impl.device import get_device
from atom_impl.graphs.recording import Recording
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.capture import recordings_of
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.utils.region_graph import reset_graph_pool
from harness.machine import fingerprint

MODELS = {"cuda": "random:llama-1b-4l", "cpu": "random:tiny-llama?layers=4"}
MODES = ("TR_HYBRID", "FULL")
LADDER = (1, 8)
WARM, SAMPLES = 10, 60
SEGMENTS, KERNELS_EACH = 33, 10  # of the split: as many graphs as 32 layers make, with a few dependent kernels in each


def clock(on_gpu: bool) -> Callable[[], int]:
    """Nanoseconds of the host: wall time where it launches for a GPU, its own CPU time where it computes itself."""
    return time.perf_counter_ns if on_gpu else time.thread_time_ns


@dataclass
class Clock:
    """Host microseconds until a call returns, and device microseconds between two events around it."""

    on_gpu: bool
    host_us: list[float] = field(default_factory=list)
    device_us: list[float] = field(default_factory=list)

    def time(self, call: Callable[[], Any]) -> Any:
        """Time one call from an idle device, and leave it idle."""
        now = clock(self.on_gpu)
        if not self.on_gpu:
            begun = now()
            result = call()
            self.host_us.append((now() - begun) / 1e3)
            return result
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        begun = now()
        result = call()
        self.host_us.append((now() - begun) / 1e3)
        end.record()
        end.synchronize()
        self.device_us.append(begin.elapsed_time(end) * 1e3)
        return result

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {"host_us": _quartiles(self.host_us)}
        return found | ({"device_us": _quartiles(self.device_us)} if self.on_gpu else {})


class Spans:
    """Host microseconds of a step inside `Recording.replay`, and there inside regions and inside graph launches.

    What is left of a replay is bookkeeping. The launches of a bare loop cannot stand in for those of the step, which
    find the caches as staging and the regions left them.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._now = clock(on_gpu)
        self.replay_us: list[float] = []
        self.regions_us: list[float] = []
        self.launches_us: list[float] = []
        self._regions = self._launches = 0.0

    @property
    def bookkeeping_us(self) -> list[float]:
        spans = zip(self.replay_us, self.regions_us, self.launches_us, strict=True)
        return [whole - regions - launches for whole, regions, launches in spans]

    @contextmanager
    def watching(self, graphs: Sequence[Any]) -> Iterator[None]:
        replay, run_region, now = Recording.replay, Recording._run_region, self._now

        def timed_launch(launch: Callable[[], None]) -> None:
            begun = now()
            launch()
            self._launches += (now() - begun) / 1e3

        def timed_replay(recording: Recording, *args: Any, **kwargs: Any) -> Any:
            self._regions = self._launches = 0.0
            begun = now()
            result = replay(recording, *args, **kwargs)
            self.replay_us.append((now() - begun) / 1e3)
            self.regions_us.append(self._regions)
            self.launches_us.append(self._launches)
            return result

        def timed_region(recording: Recording, *args: Any) -> None:
            begun = now()
            run_region(recording, *args)
            self._regions += (now() - begun) / 1e3

        recordings: Any = Recording
        recordings.replay, recordings._run_region = timed_replay, timed_region
        for graph in graphs:
            graph.replay = partial(timed_launch, graph.replay)
        try:
            yield
        finally:
            recordings.replay, recordings._run_region = replay, run_region
            for graph in graphs:
                del vars(graph)["replay"]


def make_runner(model: str, mode: str, level: int, device: str) -> ModelRunner:
    source = resolve_model(model)
    config = Config(
        model=model,
        hf_config=source.config,
        device=device,
        dtype=torch.bfloat16 if device == "cuda" else torch.float32,
        max_num_seqs=max(LADDER),
        max_model_len=128,
        max_num_batched_tokens=128,
        num_kvcache_blocks=8 * max(LADDER),
        prefill_capture_sizes=[],
        compilation_config=CompilationConfig(
            level=level, cudagraph_mode=CUDAGraphMode[mode], cudagraph_capture_sizes=list(LADDER)
        ),
    )
    runner = ModelRunner(config, load_model(config, source.weights(config.dtype, torch.device(device))))
    runner.capture_cudagraph()
    return runner


def measure(runner: ModelRunner, batch: int) -> dict[str, Any]:
    """One bucket: whole steps and bare loops over the same graphs, in turn, so that both see the same machine."""
    recording = next(r for r in recordings_of(runner).values() if r.rows == batch)
    graphs = recording.graphs()
    scheduled = ScheduledBatch(
        False, [[7]] * batch, [50] * batch, [list(range(4 * i, 4 * i + 4)) for i in range(batch)]
    )
    on_gpu = runner.device.type == "cuda"
    step, bare, spans = Clock(on_gpu), Clock(on_gpu), Spans(on_gpu)

    def loop() -> None:
        for graph in graphs:
            graph.replay()

    with torch.inference_mode():
        for sample in range(WARM + SAMPLES):
            if sample == WARM:
                step, bare, spans = Clock(on_gpu), Clock(on_gpu), Spans(on_gpu)
            with spans.watching(graphs):
                record = step.time(lambda: runner.step(scheduled)).record
            bare.time(loop)
    return {
        "batch": batch,
        "effective_mode": record.effective_mode,
        "segments": recording.segments,
        "regions": recording.regions,
        "nodes": recording.nodes,
        "step": step.figures(),
        "replay_host_us": _quartiles(spans.replay_us),
        "regions_host_us": _quartiles(spans.regions_us),
        "launches_host_us": _quartiles(spans.launches_us),
        "bookkeeping_host_us": _quartiles(spans.bookkeeping_us),
        "bookkeeping_host_us_per_launch": round(statistics.median(spans.bookkeeping_us) / recording.segments, 2),
        "bare_loop": bare.figures(),
        "bare_host_us_per_launch": round(statistics.median(bare.host_us) / recording.segments, 2),
    }


def measure_split(device_type: str) -> dict[str, Any]:
    """The same chain of dependent small kernels as one graph and as many: what cutting alone costs."""
    device = get_device(device_type)
    pool = device.new_pool()
    x = torch.zeros(1024, device=device.torch_device)
    with torch.inference_mode():
        with device.warming_up():
            x.add_(1)
        whole, cut = _graphs(device, pool, x, 1), _graphs(device, pool, x, SEGMENTS)
        clocks = {1: Clock(device_type == "cuda"), SEGMENTS: Clock(device_type == "cuda")}
        for sample in range(WARM + SAMPLES):
            for count, graphs in ((1, whole), (SEGMENTS, cut)):
                clock = clocks[count] if sample >= WARM else Clock(device_type == "cuda")
                clock.time(lambda graphs=graphs: [graph.replay() for graph in graphs])  # type: ignore[misc]
    found: dict[str, Any] = {"kernels": SEGMENTS * KERNELS_EACH}
    found |= {f"in_{count}_graphs": clock.figures() for count, clock in clocks.items()}
    for name in ("host_us", "device_us"):
        samples = {count: getattr(clock, name) for count, clock in clocks.items()}
        if samples[1]:
            more = statistics.median(samples[SEGMENTS]) - statistics.median(samples[1])
            found[f"{name}_more_for_{SEGMENTS}_graphs"] = round(more, 2)
    return found


def _graphs(device: Any, pool: Any, x: torch.Tensor, count: int) -> list[Any]:
    made = []
    with device.recording():
        for _ in range(count):
            graph = device.graph()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            for _ in range(SEGMENTS * KERNELS_EACH // count):
                x.add_(1)
            graph.capture_end()
            assert device.node_count(graph) == SEGMENTS * KERNELS_EACH // count
            graph.replay()
            made.append(graph)
    return made


def _quartiles(samples: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in statistics.quantiles(samples, n=4)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the replay path against bare loops over the same graphs.")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", help=f"the model to serve; by default {MODELS['cuda']}, {MODELS['cpu']} on a CPU")
    parser.add_argument("--level", type=int, choices=range(4), default=0)
    asked = parser.parse_args(arguments)
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; leave --device out for the software graph", file=sys.stderr)
        return 4
    model, rows = asked.model or MODELS[asked.device], []
    for mode in MODES:
        runner = make_runner(model, mode, asked.level, asked.device)
        for batch in LADDER:
            rows.append({"mode": mode, **measure(runner, batch)})
            print(json.dumps(rows[-1]), flush=True)
        runner.close()
        reset_graph_pool()
    record = {
        "command": f"python -m tools.replay_overhead --out results/records/<machine>/{asked.out.name} "
        f"--device {asked.device} --model {model} --level {asked.level}",
        "unit": f"us: first quartile, median, third quartile of {SAMPLES} samples",
        "host_clock": "wall time" if asked.device == "cuda" else "CPU time of the thread",
        "graphs": "torch.cuda.CUDAGraph" if asked.device == "cuda" else "software graph: host and device are one",
        "model": model,
        "level": asked.level,
        "rows": rows,
        "split": measure_split(asked.device),
        "machine": fingerprint(),
    }
    print(json.dumps(record["split"]), flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
