"""The Triton body of decode attention, held to the torch body's contract and measured against it.

A kernel planned at length 1 attended to one block for ever after; a split that a row does not reach left old memory in
the sum; a body that could not be built was replaced by another in silence. The kernels are interpreted on a CPU and
real on a GPU.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atom_impl import model_ops
from atom_impl.config import CompilationConfig, Config, CUDAGraphMode
from atom_impl.device import get_device
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.model_ops import paged_attention, triton_attention
from atom_impl.model_ops.attention import Attention, decode_body
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.utils.forward_context import AttentionMetaData, AttnState, Context, forward_context
from atom_impl.utils.region_graph import reset_graph_pool
from suites.correctness import test_attention as contract
from suites.correctness.attention_steps import SCALE, Step, bits, moved

TORCH_DECODE = paged_attention.decode
NAMES = ("slots", "lens", "tables", "q", "k", "v")


@pytest.fixture(autouse=True)
def triton_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Step.run`, and with it every test of the contract, decodes through the Triton body."""
    monkeypatch.setattr(paged_attention, "decode", triton_attention.decode)


# --- the torch body's contract -------------------------------------------------------------------------------

test_decode_equals_attention_computed_row_by_row = contract.test_decode_equals_attention_computed_row_by_row
test_decode_stores_keys_and_values_in_their_slots_and_nowhere_else = (
    contract.test_decode_stores_keys_and_values_in_their_slots_and_nowhere_else
)
test_pad_rows_are_zeros_and_touch_nothing_whatever_they_hold = (
    contract.test_pad_rows_are_zeros_and_touch_nothing_whatever_they_hold
)
test_a_cache_slot_that_no_live_row_owns_may_hold_nan = contract.test_a_cache_slot_that_no_live_row_owns_may_hold_nan
test_entries_of_a_live_table_past_its_length_may_hold_anything = (
    contract.test_entries_of_a_live_table_past_its_length_may_hold_anything
)
test_a_live_rows_slot_outside_the_cache_is_not_written = contract.test_a_live_rows_slot_outside_the_cache_is_not_written
test_nan_of_one_live_request_stays_with_it = contract.test_nan_of_one_live_request_stays_with_it
test_rows_that_are_no_rectangle_of_requests_and_queries_are_refused = (
    contract.test_rows_that_are_no_rectangle_of_requests_and_queries_are_refused
)
test_metadata_of_another_length_than_the_step_is_refused = (
    contract.test_metadata_of_another_length_than_the_step_is_refused
)


def test_rows_that_may_not_be_written_leave_the_scratch_block_alone_too(device: str) -> None:
    step = Step([5, 9], pad=2)
    step.slots[0] = step.kv.num_slots
    before = step.kv.k_cache[-1].clone(), step.kv.v_cache[-1].clone()
    step.run(device)
    assert torch.equal(step.kv.k_cache[-1], before[0])
    assert torch.equal(step.kv.v_cache[-1], before[1])


def test_a_request_whose_last_query_is_padding_answers_the_live_ones(device: str) -> None:
    step, whole = Step([9, 7], queries=2), Step([9, 7], queries=2)
    meta = moved(step, device)
    meta.live_rows.fill_(3)
    for cache in (step.kv.k_cache, step.kv.v_cache):
        cache.flatten(0, 1)[step.slots[3]] = math.nan
    kv = KVCacheTensor(step.kv.k_cache.to(device), step.kv.v_cache.to(device))
    q, k, v = (x.to(device) for x in (step.q, step.k, step.v))
    out = triton_attention.decode(q, k, v, kv, meta, SCALE).cpu()
    assert torch.equal(bits(out[:3]), bits(whole.run(device)[:3]))
    assert torch.equal(bits(out[3]), torch.zeros_like(bits(out[3])))


# --- shapes, splits and precision ----------------------------------------------------------------------------


class Problem:
    """One decode step of any shape over a cache of random content, with the blocks of its tables shuffled."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, block: int, lengths: list[int], width: int) -> None:
        draw = torch.Generator().manual_seed(heads * head_dim + block)
        requests = len(lengths)
        self.tensors = [torch.randn(requests, n, head_dim, generator=draw) for n in (heads, kv_heads, kv_heads)]
        cache = (requests * width + 1, block, kv_heads, head_dim)
        self.tensors += [torch.randn(cache, generator=draw) for _ in range(2)]
        tables = torch.randperm(requests * width, generator=draw).view(requests, width).to(torch.int32)
        last = torch.tensor(lengths) - 1
        slots = tables[torch.arange(requests), last // block].long() * block + last % block
        lens = torch.tensor(lengths, dtype=torch.int32)
        self.metadata = lens, slots, tables, torch.tensor([requests], dtype=torch.int32)
        self.scale = head_dim**-0.5

    def rounded(self, dtype: torch.dtype) -> Problem:
        self.tensors = [x.to(dtype) for x in self.tensors]
        return self

    def run(self, body: Callable[..., torch.Tensor], device: str, dtype: torch.dtype) -> torch.Tensor:
        q, k, v, k_cache, v_cache = (x.to(device, dtype, copy=True) for x in self.tensors)
        lens, slots, tables, live = (x.to(device) for x in self.metadata)
        meta = AttentionMetaData(lens, slots, lens, tables, live)
        found = body(q, k, v, KVCacheTensor(k_cache, v_cache), meta, self.scale)
        assert found.dtype is dtype
        return found.double().cpu()

    def errors(self, device: str, dtype: torch.dtype) -> tuple[float, float]:
        """Relative L2 error of the Triton body and of the torch body, against the torch body in float64."""
        exact = self.run(TORCH_DECODE, "cpu", torch.float64)
        found = [self.run(body, device, dtype) for body in (triton_attention.decode, TORCH_DECODE)]
        first, second = (float((x - exact).norm() / exact.norm()) for x in found)
        return first, second


#: 192 slots: two splits of 96 in float32, one whole split and a part in 16 bits; tiles of 32 and 64.
EDGES = [1, 33, 96, 97, 192]
SHAPES = [(2, 2, 16, 8), (6, 2, 16, 16), (4, 1, 64, 8), (3, 1, 64, 16), (1, 1, 128, 8), (4, 1, 128, 16), (6, 2, 20, 8)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "{} over {} heads of {}, blocks of {}".format(*s))
def test_float32_is_as_close_to_float64_as_rounding_allows(shape: tuple[int, int, int, int], device: str) -> None:
    problem = Problem(*shape, EDGES, 192 // shape[3])
    error, _ = problem.errors(device, torch.float32)
    assert error < 5e-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(6, 2, 16, 16), (3, 1, 64, 16), (4, 1, 128, 8)])
def test_sixteen_bits_are_no_less_precise_than_the_torch_body(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: str
) -> None:
    error, torch_error = Problem(*shape, EDGES, 192 // shape[3]).rounded(dtype).errors(device, dtype)
    assert error <= 1.05 * torch_error


def test_weights_rounded_once_to_the_caches_dtype_would_not_pass() -> None:
    """The control: it shows that the bound above tells one narrow product of the weights from two."""

    def coarse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: KVCacheTensor, *rest: Any) -> torch.Tensor:
        kv.write(k, v, rest[0].slot_mapping)
        keys, values = (x.repeat_interleave(3, 2).float() for x in kv.gather(rest[0].block_tables))
        scores = torch.einsum("rhd,rshd->rhs", q.float(), keys) * rest[1]
        past = torch.arange(keys.shape[1]) >= rest[0].context_lens[:, None, None]
        weights = torch.softmax(scores.masked_fill(past, -math.inf), -1).bfloat16().float()
        return torch.einsum("rhs,rshd->rhd", weights, values).bfloat16()

    problem = Problem(6, 2, 16, 16, EDGES, 12).rounded(torch.bfloat16)
    exact = problem.run(TORCH_DECODE, "cpu", torch.float64)
    errors = [(problem.run(body, "cpu", torch.bfloat16) - exact).norm() for body in (coarse, TORCH_DECODE)]
    assert errors[0] > 1.05 * errors[1]


@pytest.mark.parametrize("longest", [16, 32, 64, 1])
def test_splits_and_tiles_of_any_size_give_the_same_attention(
    longest: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(4, 2, 16, 8, [1, 16, 17, 33, 64], 8)
    plain = problem.run(triton_attention.decode, device, torch.float32)
    monkeypatch.setattr(triton_attention, "SPLIT_TOKENS", longest)
    monkeypatch.setattr(triton_attention, "TILE_TOKENS", 32)
    found = problem.run(triton_attention.decode, device, torch.float32)
    assert float((found - plain).norm() / plain.norm()) < 3e-7


@given(capacity=st.integers(1, 300_000), dtype=st.sampled_from([torch.bfloat16, torch.float32]))
def test_every_slot_of_a_table_lies_in_one_split(capacity: int, dtype: torch.dtype) -> None:
    plan = triton_attention.plan_splits(capacity, dtype)
    assert plan.split_tokens % plan.tile_tokens == 0
    assert (plan.splits - 1) * plan.split_tokens < capacity <= plan.splits * plan.split_tokens
    assert 1 <= plan.splits <= triton_attention.MAX_SPLITS


@pytest.mark.parametrize(("requests", "width"), [(0, 4), (2, 0)])
def test_a_step_without_rows_or_blocks_is_zeros(requests: int, width: int, device: str) -> None:
    step = Step([1] * requests)
    step.kv, step.tables = Step([1]).kv, torch.zeros((requests, width), dtype=torch.int32)
    assert torch.equal(step.run(device), torch.zeros(requests, 4, 16))


def test_a_rows_bits_do_not_depend_on_its_neighbours(device: str) -> None:
    expected = Step([5, 16, 2]).run(device)
    for request in range(3):
        one = Step([5, 16, 2])
        one.lengths = [one.lengths[request]]
        for name in NAMES:
            setattr(one, name, getattr(one, name)[request : request + 1])
        assert torch.equal(bits(one.run(device)[0]), bits(expected[request]))


# --- recordings ----------------------------------------------------------------------------------------------


class Recorded:
    """A decode of `Step` recorded once, on static tensors; `replay` loads another step's content into them."""

    def __init__(self, step: Step, device: str, layers: int = 1) -> None:
        self.device = get_device(device)
        self.static = {name: getattr(step, name).to(device) for name in NAMES}
        self.kv = KVCacheTensor(step.kv.k_cache.to(device), step.kv.v_cache.to(device))
        self.live = torch.tensor([step.live], dtype=torch.int32, device=device)
        self.out = torch.full_like(self.static["q"], math.nan)
        self.pool = self.device.new_pool()
        with self.device.warming_up():
            self._decode()
        self.capture(layers)

    def capture(self, layers: int = 1) -> None:
        with self.device.recording():
            self.graph = self.device.graph()
            self.graph.capture_begin(pool=self.pool)
            for _ in range(layers):
                self.out.copy_(self._decode())
            self.graph.capture_end()

    def _decode(self) -> torch.Tensor:
        slots, lens, tables, q, k, v = (self.static[name] for name in NAMES)
        meta = AttentionMetaData(lens, slots, lens, tables, self.live)
        return triton_attention.decode(q, k, v, self.kv, meta, SCALE)

    def replay(self, step: Step) -> torch.Tensor:
        for name, tensor in self.static.items():
            tensor.copy_(getattr(step, name))
        self.kv.k_cache.copy_(step.kv.k_cache)
        self.kv.v_cache.copy_(step.kv.v_cache)
        self.live.fill_(step.live)
        self.graph.replay()
        self.device.synchronize()
        return self.out.cpu()


def test_a_recording_made_at_length_one_is_right_at_every_later_length(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_attention, "SPLIT_TOKENS", 32)
    recorded = Recorded(Step([1, 1, 1], width=24), device)
    for seed, lengths in enumerate([[1, 96, 33], [32, 64, 65], [95, 2], [7]]):
        step = Step(lengths, pad=3 - len(lengths), seed=seed, width=24)
        for _ in range(2):
            assert torch.equal(bits(recorded.replay(step)), bits(step.run(device)))
            assert torch.equal(recorded.kv.k_cache.cpu(), step.kv.k_cache)


def test_a_recording_is_three_launches_and_its_copy_at_any_length(device: str) -> None:
    for length in (1, 16):
        recorded = Recorded(Step([length]), device)
        assert recorded.device.node_count(recorded.graph) == 4


def test_partial_results_of_one_layer_are_reused_by_the_next(device: str) -> None:
    one, four = (Recorded(Step([5, 9], width=16), device, layers) for layers in (1, 4))
    assert one.device.pool_bytes(one.pool) == four.device.pool_bytes(four.pool) > 0


def test_a_capture_writes_neither_the_cache_nor_the_output(device: str) -> None:
    recorded = Recorded(Step([5, 9]), device)
    tensors = (recorded.kv.k_cache, recorded.kv.v_cache, recorded.out)
    for tensor in tensors:
        tensor.fill_(7.0)
    recorded.capture()
    assert all(bool((tensor == 7.0).all()) for tensor in tensors)


@pytest.mark.parametrize("mode", ["TR_HYBRID", "FULL"])
def test_a_served_model_replays_what_it_computes_without_a_graph(mode: str, model_name: str, device: str) -> None:
    source = resolve_model(model_name)
    compilation = CompilationConfig(level=0, cudagraph_mode=CUDAGraphMode[mode], cudagraph_capture_sizes=[2])
    config = Config(
        model=model_name,
        hf_config=source.config,
        dtype=torch.float32,
        device=device,
        max_num_seqs=2,
        max_model_len=32,
        max_num_batched_tokens=32,
        num_kvcache_blocks=8,
        op_backend="triton",
        compilation_config=compilation,
    )
    with torch.inference_mode():
        runner = ModelRunner(config, load_model(config, source.weights(config.dtype, torch.device(device))))
        runner.step(ScheduledBatch(True, [[5, 6, 7], [8, 9]], [3, 2], [[3, 1], [0, 5]]), graphs=False)
        runner.capture_cudagraph()
        for ids, lengths in (([[3], [4]], [4, 3]), ([[9]], [19])):
            batch = ScheduledBatch(False, ids, lengths, [[3, 1], [0, 5]][: len(ids)])
            replayed = runner.step(batch)
            logits = replayed.logits.clone()
            assert replayed.record.effective_mode == mode
            assert torch.equal(logits, runner.step(batch, graphs=False, rows=2).logits)
        runner.close()
    reset_graph_pool()


# --- how it is chosen, and what it refuses -------------------------------------------------------------------


def layer_of(backend: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Config, Attention]:
    config = Config(dtype=dtype, device=device, op_backend=backend)
    return config, Attention(config, num_heads=4, num_kv_heads=2, head_dim=16, layer_name="model.layers.0.attn")


def test_the_config_chooses_the_body_and_prefill_stays_torch_code(device: str) -> None:
    config, attention = layer_of("triton", device)
    assert attention.decode_body is triton_attention.decode
    step, twin = Step([5, 9], pad=1), Step([5, 9], pad=1)
    expected = twin.run(device)
    q, k, v, k_cache, v_cache = (x.to(device) for x in (step.q, step.k, step.v, step.kv.k_cache, step.kv.v_cache))
    kv, meta = KVCacheTensor(k_cache, v_cache), moved(step, device)
    context = Context(torch.zeros(1, dtype=torch.int64), running_bs=3, running_tokens=3)
    with forward_context(meta, config, context, kv_cache_data={attention.layer_name: kv}):
        assert torch.equal(bits(attention(q, k, v).cpu()), bits(expected))
        meta.state, meta.seq_lens_q, meta.seq_lens_k = AttnState.PREFILL_PREFIX, [1, 1], [5, 9]
        assert torch.equal(attention(q, k, v), paged_attention.prefill(q, k, v, kv, meta, SCALE))


def test_without_the_package_the_backend_is_an_error_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("triton_attention", "triton_kernels"):
        monkeypatch.delitem(sys.modules, f"atom_impl.model_ops.{name}")
        monkeypatch.delattr(model_ops, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    config = Config(device="cpu", op_backend="triton")
    with pytest.raises(ModuleNotFoundError, match=r"needs the package triton.*op_backend='torch'"):
        Attention(config, num_heads=4, num_kv_heads=2, head_dim=16, layer_name="a")
    assert not config.compilation_config.static_forward_context


def test_a_backend_without_an_attention_body_is_named() -> None:
    with pytest.raises(ValueError, match="op_backend 'aiter' has no attention body; choose 'torch' or 'triton'"):
        decode_body(Config(device="cpu", op_backend="aiter"))


def test_a_dtype_that_the_kernels_lack_is_refused_when_the_model_is_built() -> None:
    with pytest.raises(ValueError, match=r"does not compute in torch\.float64; choose one of .*op_backend='torch'"):
        layer_of("triton", dtype=torch.float64)


def test_a_cache_in_another_dtype_than_the_queries_is_refused() -> None:
    step = Step([5])
    step.q = step.q.bfloat16()
    with pytest.raises(ValueError, match=r"torch\.bfloat16, torch\.float32; q, k, v and the cache share one dtype"):
        step.run()


@pytest.mark.parametrize(
    ("name", "cut"), [("q", (..., slice(8))), ("k", (slice(None), slice(1))), ("q", (slice(None), slice(3)))]
)
def test_operands_that_do_not_fit_the_cache_are_refused(name: str, cut: tuple[Any, ...]) -> None:
    step = Step([5])
    setattr(step, name, getattr(step, name)[cut])
    with pytest.raises(ValueError, match="for a cache of 2 heads of 16"):
        step.run()


def test_operands_may_be_views_of_one_projection(device: str) -> None:
    step, twin = Step([5, 9]), Step([5, 9])
    fused = torch.cat([step.q, step.k, step.v], dim=1)
    step.q, step.k, step.v = fused.split([4, 2, 2], dim=1)
    assert torch.equal(bits(step.run(device)), bits(twin.run(device)))
    step, twin = Step([5, 9]), Step([5, 9])
    step.q = step.q.mT.contiguous().mT
    assert torch.equal(bits(step.run(device)), bits(twin.run(device)))
