"""Guards against a ledger that is too dear to leave on, and is then off on the day of the fault.

The bound is 2 % of a decode step at batch 1. Done alone in a loop the ledger's calls take a fifth of what they take in
a step, where the model has just emptied the caches, so they are timed where they happen.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from atom_impl.config import CompilationConfig, Config, CUDAGraphMode
from atom_impl.model_engine import model_runner
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.utils.region_graph import reset_graph_pool
from atom_impl.utils.step_ledger import StepLedger, StepRecord

MOST = 0.02
#: Narrow, but as deep as the smallest model that anyone serves: one record a step, whatever the depth.
MODEL = "random:tiny-llama?layers=30"
BATCH = ScheduledBatch(False, [[7]], [20], [[0, 1]])
STEPS = 40


@pytest.fixture(params=["TR_HYBRID", "FULL"])
def runner(request: pytest.FixtureRequest, device: str) -> Iterator[ModelRunner]:
    source = resolve_model(MODEL)
    graphs = CompilationConfig(level=0, cudagraph_mode=CUDAGraphMode[request.param], cudagraph_capture_sizes=[1])
    config = Config(
        model=MODEL,
        hf_config=source.config,
        device=device,
        dtype=torch.float32,
        max_num_seqs=1,
        max_model_len=64,
        max_num_batched_tokens=64,
        num_kvcache_blocks=8,
        prefill_capture_sizes=[8],
        compilation_config=graphs,
    )
    made = ModelRunner(config, load_model(config, source.weights(config.dtype, torch.device(device))))
    made.capture_cudagraph()
    yield made
    made.close()
    reset_graph_pool()


class Stopwatch:
    """Nanoseconds spent in the functions it wraps, its own reading included; and how often they were called."""

    def __init__(self) -> None:
        self.spent_ns = self.calls = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.calls += 1
                self.spent_ns += time.perf_counter_ns() - begun

        return timed


@pytest.fixture
def ledger_time(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    """Times whatever a step does for its record."""
    watch = Stopwatch()
    monkeypatch.setattr(model_runner, "_open_record", watch.around(model_runner._open_record))
    monkeypatch.setattr(StepRecord, "copied", watch.around(StepRecord.copied))
    monkeypatch.setattr(StepRecord, "add_copies", watch.around(StepRecord.add_copies))
    monkeypatch.setattr(StepLedger, "close", watch.around(StepLedger.close))
    return watch


def test_one_steps_record_costs_at_most_two_percent_of_a_decode_step_at_batch_one(
    runner: ModelRunner, ledger_time: Stopwatch, benchmark: Any
) -> None:
    ledger_us, step_us = [], []

    def step() -> None:
        begun, before = time.perf_counter_ns(), ledger_time.spent_ns
        runner.step(BATCH)
        runner.device.synchronize()
        step_us.append((time.perf_counter_ns() - begun) / 1e3)
        ledger_us.append((ledger_time.spent_ns - before) / 1e3)

    step()
    assert ledger_time.calls == 10, "a record opened, seven copies staged, the recording's own added, the record closed"
    benchmark.pedantic(step, rounds=STEPS, warmup_rounds=3)
    whole, part = statistics.median(step_us), statistics.median(ledger_us)
    benchmark.extra_info.update(step_us=whole, ledger_us=part, share=part / whole)
    assert part / whole <= MOST, (
        f"{part:.1f} of {whole:.0f} us are the ledger's: {part / whole:.1%}, allowed {MOST:.0%}"
    )
