"""A step three times faster than before still took eight times what its bytes take, and nobody had divided."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.cells import Cell
from harness.engines.base import Phase, SessionSpec, StepBatch
from harness.plugins import find_engine
from harness.probes.floor import FloorProbe, step_bytes
from harness.records import Status
from harness.timing.bandwidth import bandwidth_bytes_s
from suites.instrument.probe_bench import context_of, gate
from suites.instrument.toy_session import ToySession

BATCH = StepBatch(Phase.DECODE, ((1,), (2,)), (10, 30), ((0,), (1, 2)))


class Weighed(ToySession):
    def expected(self) -> dict[str, Any]:
        return {**super().expected(), "weight_bytes": 1_000_000, "kv_bytes_per_token": 100}


def test_a_step_reads_its_weights_once_and_the_cache_of_every_live_context() -> None:
    assert step_bytes(BATCH, {"weight_bytes": 1000, "kv_bytes_per_token": 8}) == 1000 + 40 * 8


def test_the_floor_is_bytes_over_the_bandwidth_that_was_measured_here() -> None:
    result = FloorProbe().run(context_of(Weighed, input_sets=2))
    floor = result.counters["floor"]
    assert set(floor["per_bucket"]) == {"1", "2", "4"}
    for entry in floor["per_bucket"].values():
        assert entry["floor_us"] == pytest.approx(entry["bytes"] / floor["bandwidth_bytes_s"] * 1e6)
        assert entry["bytes"] > 1_000_000
    assert gate(result, "floor").status is Status.REPORT


def test_an_engine_that_does_not_say_its_bytes_has_no_floor() -> None:
    assert gate(FloorProbe().run(context_of(input_sets=2)), "floor").status is Status.NOT_APPLICABLE


def test_the_bandwidth_is_that_of_memory_and_asked_for_once() -> None:
    first = bandwidth_bytes_s("cpu")
    assert 1e8 < first < 1e13
    assert bandwidth_bytes_s("cpu") == first


def test_a_tied_embedding_counts_once_and_the_cache_by_the_token() -> None:
    engine, cell = find_engine("atom_impl"), Cell.of(model="random:tiny-llama", mode="FULL", ladder=[1, 2])
    spec = SessionSpec("float32", "cpu", max_num_seqs=2, max_model_len=32, block_size=8, num_blocks=16)
    session = engine.open(cell, spec)
    try:
        facts = session.expected()
        cache = session.kv()
        assert facts["kv_bytes_per_token"] * 16 * 8 == sum(tensor.nbytes for tensor in cache)
        assert facts["weight_bytes"] % torch.float32.itemsize == 0
        assert facts["weight_bytes"] > 0
    finally:
        session.close()
