"""Guards against a serving step that is not the one it claims to be: wrong bucket, stale tail, a cache slot written by
padding.

The runner serves a small model step by step; every replay is compared with the same step without a graph, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from atom_impl.config import CompilationConfig, Config, CUDAGraphMode
from atom_impl.graphs.recording import ReplayError
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.capture import recordings_of
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.forward_context import ForwardContext, get_forward_context
from atom_impl.utils.region_graph import reset_graph_pool
from atom_impl.utils.step_ledger import CopyKind, Fallback

LADDER = [1, 2, 4]
Make = Callable[..., ModelRunner]


@pytest.fixture
def make(model_name: str, device: str) -> Iterator[Make]:
    made: list[ModelRunner] = []

    def runner(mode: str, level: int = 0, **settings: Any) -> ModelRunner:
        source = resolve_model(model_name)
        compilation: dict[str, Any] = {"level": level, "cudagraph_mode": CUDAGraphMode[mode]}
        compilation["cudagraph_capture_sizes"] = LADDER
        compilation |= settings.pop("compilation", {})
        defaults: dict[str, Any] = {
            "dtype": torch.float32,
            "device": device,
            "max_num_seqs": 6,
            "max_model_len": 64,
            "max_num_batched_tokens": 64,
            "num_kvcache_blocks": 40,
            "prefill_capture_sizes": [8, 24],
        }
        config = Config(
            model=model_name,
            hf_config=source.config,
            compilation_config=CompilationConfig(**compilation),
            **(defaults | settings),
        )
        made.append(ModelRunner(config, load_model(config, source.weights(config.dtype, torch.device(device)))))
        return made[-1]

    with torch.inference_mode():
        yield runner
    for each in made:
        each.close()
    reset_graph_pool()


def tables(requests: int, blocks_each: int = 4) -> list[list[int]]:
    """Block tables in an order that no arange would give."""
    return [[(7 * (blocks_each * i + j) + 3) % 40 for j in range(blocks_each)] for i in range(requests)]


def decode(requests: int, seed: int, length: int = 20) -> ScheduledBatch:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 200, (requests, 1), generator=draw).tolist()
    lengths = torch.randint(2, length, (requests,), generator=draw).tolist()
    return ScheduledBatch(False, ids, lengths, tables(requests))


def prefill(lengths: list[int], seed: int = 0) -> ScheduledBatch:
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 200, (length,), generator=draw).tolist() for length in lengths]
    return ScheduledBatch(True, ids, lengths, tables(len(lengths)))


def caches(runner: ModelRunner) -> list[torch.Tensor]:
    return [t[:-1].clone() for layer in runner.kv_cache.values() for t in (layer.k_cache, layer.v_cache)]


def restore(runner: ModelRunner, saved: list[torch.Tensor]) -> None:
    live = [t[:-1] for layer in runner.kv_cache.values() for t in (layer.k_cache, layer.v_cache)]
    for tensor, copy in zip(live, saved, strict=True):
        tensor.copy_(copy)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", ["TR_HYBRID", "FULL", "FULL_DECODE_ONLY", "FULL_AND_TR_HYBRID"])
def test_a_replay_is_the_same_step_without_a_graph_bit_for_bit(make: Make, mode: str, level: int) -> None:
    runner = make(mode, level)
    runner.step(prefill([9, 5, 12]), graphs=False)
    runner.capture_cudagraph()
    for seed, requests in enumerate([4, 1, 3, 2, 4, 1, 2, 3]):
        batch = decode(requests, seed)
        before = caches(runner)
        for buffer in runner.outputs():
            buffer.fill_(float("nan"))
        replayed = runner.step(batch)
        logits, hidden, after = replayed.logits.clone(), replayed.hidden_states.clone(), caches(runner)
        restore(runner, before)
        bucket = min(size for size in LADDER if size >= requests)
        plain = runner.step(batch, graphs=False, rows=bucket)
        assert replayed.record.effective_mode == ("FULL" if mode in ("FULL", "FULL_DECODE_ONLY") else "TR_HYBRID")
        assert replayed.record.bucket == bucket
        assert (replayed.record.compiles, replayed.record.recompiles) == (0, 0)
        assert torch.equal(hidden, plain.hidden_states)
        assert torch.equal(logits, plain.logits)
        assert all(torch.equal(a, b) for a, b in zip(after, caches(runner), strict=True))


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", ["NONE", "FULL"])
def test_no_served_step_compiles_whatever_its_size(make: Make, mode: str, level: int) -> None:
    runner = make(mode, level)
    runner.capture_cudagraph()
    before = compilation_counter.as_dict()
    for requests in (1, 2, 3, 4, 5, 1):
        runner.step(decode(requests, requests))
    for lengths in ([1], [2], [9, 5], [24]):
        runner.step(prefill(lengths))
    assert compilation_counter.as_dict() == before


@pytest.mark.parametrize("level", [0, 3])
def test_a_prefill_under_tr_hybrid_replays_its_token_bucket(make: Make, level: int) -> None:
    runner = make("TR_HYBRID", level)
    runner.capture_cudagraph()
    for lengths in ([8], [3, 4], [24], [10, 9], [1]):
        batch = prefill(lengths, seed=sum(lengths))
        out = runner.step(batch)
        hidden, after = out.hidden_states.clone(), caches(runner)
        plain = runner.step(batch, graphs=False, rows=out.record.bucket)
        assert out.record.effective_mode == "TR_HYBRID"
        assert torch.equal(hidden, plain.hidden_states)
        assert all(torch.equal(a, b) for a, b in zip(after, caches(runner), strict=True))


def test_segments_regions_and_copies_follow_from_the_model(make: Make) -> None:
    for mode, per_layer in (("TR_HYBRID", True), ("FULL", False)):
        runner = make(mode)
        runner.capture_cudagraph()
        record = runner.step(decode(3, 0)).record
        assert runner.config.hf_config is not None
        layers = runner.config.hf_config.num_hidden_layers
        assert (record.segments, record.regions) == ((layers + 1, layers) if per_layer else (1, 0))
        assert record.copies[CopyKind.STAGING].count == len(runner.staging.layout())
        assert CopyKind.HANDOFF not in record.copies
        assert CopyKind.COPY_IN not in record.copies
        assert (record.live_rows, record.padded_rows, record.compiles) == (3, 1, 0)


def test_steps_outside_the_buckets_run_eagerly_with_a_reason(make: Make) -> None:
    runner = make("FULL")
    assert runner.step(decode(2, 0)).record.fallback is Fallback.NOT_CAPTURED
    runner.capture_cudagraph()
    assert runner.step(decode(5, 0)).record.fallback is Fallback.ABOVE_LADDER
    assert runner.step(prefill([5])).record.fallback is Fallback.PREFILL_EAGER
    assert runner.step(decode(2, 0), graphs=False).record.fallback is Fallback.REQUESTED
    assert runner.ledger.fallbacks.total() == 4
    tokens = make("TR_HYBRID")
    tokens.capture_cudagraph()
    assert tokens.step(prefill([25])).record.fallback is Fallback.NO_PREFILL_BUCKET


def test_enforce_eager_and_use_cudagraph_off_capture_nothing_and_say_why(make: Make) -> None:
    for settings, reason in (
        ({"enforce_eager": True}, Fallback.ENFORCE_EAGER),
        ({"compilation": {"use_cudagraph": False}}, Fallback.GRAPHS_OFF),
    ):
        runner = make("FULL", **settings)
        runner.capture_cudagraph()
        assert recordings_of(runner) == {}
        record = runner.step(decode(2, 0)).record
        assert (record.requested_mode, record.effective_mode, record.fallback) == ("FULL", "NONE", reason)


def test_capture_writes_no_cache_slot_and_is_repeatable(make: Make) -> None:
    runner = make("TR_HYBRID")
    runner.step(prefill([9, 5]), graphs=False)
    before = caches(runner)
    seconds, sizes = runner.capture_cudagraph()
    assert sizes == LADDER
    assert seconds > 0
    assert all(torch.equal(a, b) for a, b in zip(before, caches(runner), strict=True))
    runner.close()
    runner.capture_cudagraph()
    assert runner.step(decode(2, 1)).record.effective_mode == "TR_HYBRID"


def test_the_largest_bucket_is_recorded_first_whatever_its_phase(make: Make) -> None:
    """The pool is then made to the largest one's measure, and the others fit into it."""
    runner = make("TR_HYBRID")
    runner.capture_cudagraph()
    assert runner.capture_report is not None
    order = list(runner.capture_report.bucket_seconds)
    assert order == ["prefill 24", "prefill 8", "decode 4", "decode 2", "decode 1"]
    assert runner.capture_report.buckets == {"prefill": [8, 24], "decode": LADDER}


def test_a_raising_step_leaves_an_empty_context_and_the_next_one_runs(make: Make) -> None:
    runner = make("TR_HYBRID")
    runner.capture_cudagraph()
    good = runner.step(decode(2, 3)).hidden_states.clone()
    attention = next(iter(runner.config.compilation_config.static_forward_context))
    kept = runner.kv_cache[attention]
    runner.kv_cache = {name: cache for name, cache in runner.kv_cache.items() if name != attention}
    with pytest.raises(Exception, match=attention):
        runner.step(decode(2, 3))
    assert get_forward_context() == ForwardContext()
    runner.kv_cache = {attention: kept} | dict(runner.kv_cache)
    assert torch.equal(runner.step(decode(2, 3)).hidden_states, good)


def test_metadata_rebuilt_outside_staging_is_refused_by_name(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make("FULL")
    runner.capture_cudagraph()
    stage = runner.staging.stage

    def rebuilt(*args: Any) -> Any:
        ids, positions, metadata = stage(*args)
        metadata.context_lens = metadata.context_lens.clone()
        return ids, positions, metadata

    monkeypatch.setattr(runner.staging, "stage", rebuilt)
    with pytest.raises(ReplayError, match=r"attn_metadata\.context_lens moved"):
        runner.step(decode(2, 0))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: ScheduledBatch(False, [], [], []), "at least one request"),
        (lambda: ScheduledBatch(False, [[1]], [1, 2], [[0]]), "one of each per request"),
        (lambda: ScheduledBatch(False, [[1], [1, 2]], [1, 2], [[0], [0]]), "ragged rows"),
        (lambda: ScheduledBatch(False, [[1, 2]], [1], [[0]]), "a length that counts them"),
    ],
)
def test_an_impossible_batch_is_refused_before_work_starts(batch: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch()


def test_a_step_beyond_the_limits_names_the_limit(make: Make) -> None:
    runner = make("NONE")
    with pytest.raises(ValueError, match="max_num_seqs"):
        runner.step(decode(7, 0))
    with pytest.raises(ValueError, match="max_model_len is 64"):
        runner.step(ScheduledBatch(False, [[1]], [65], [[0, 1, 2, 3, 4]]))
    with pytest.raises(ValueError, match="hold fewer than 20"):
        runner.step(ScheduledBatch(False, [[1]], [20], [[0]]))
