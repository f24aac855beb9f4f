"""Attention over the paged cache, and what may not leak through it.

A pad row with slot -1 wrote into the last slot of the cache, which was another request's. A slot past a request's
length held NaN, and a weight of zero did not remove it. A split count taken from a host length was frozen by a
recording made at length 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from atom_impl.config import Config
from atom_impl.model_ops import paged_attention
from atom_impl.model_ops.attention import Attention
from atom_impl.model_ops.attention import unified_attention_with_output as operator_body
from atom_impl.model_ops.kv_cache import KVCacheTensor, allocate_kv_cache, kv_bytes_per_block
from atom_impl.utils.forward_context import (
    AttentionMetaData,
    AttnState,
    Context,
    ForwardContext,
    forward_context,
    reset_forward_context,
)

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


# --- decode computes attention -------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[1], [4], [5], [16], [1, 4, 5, 16], [15, 2, 8]])
@pytest.mark.parametrize("queries", [1, 3])
def test_decode_equals_attention_computed_row_by_row(lengths: list[int], queries: int, device: str) -> None:
    step = Step([max(n, queries) for n in lengths], queries=queries)
    expected = step.expected()
    assert_close(step.run(device), expected)


@given(lengths=st.lists(st.integers(2, 16), min_size=1, max_size=4), pad=st.integers(0, 3), seed=st.integers(0, 999))
def test_decode_is_right_for_any_lengths_and_padding(lengths: list[int], pad: int, seed: int) -> None:
    step = Step(lengths, queries=2, pad=pad, seed=seed)
    expected = step.expected()
    assert_close(step.run(), expected)


def test_decode_stores_keys_and_values_in_their_slots_and_nowhere_else(device: str) -> None:
    step = Step([5, 9, 16], pad=2)
    before = step.kv.k_cache.clone(), step.kv.v_cache.clone()
    step.run(device)
    for cache, old, new in ((step.kv.k_cache, before[0], step.k), (step.kv.v_cache, before[1], step.v)):
        old.flatten(0, 1)[step.slots[:3]] = new[:3]
        assert torch.equal(cache[:-1], old[:-1])


# --- what may not leak ---------------------------------------------------------------------------------------


def fill(name: str, value: int) -> Callable[[Step], None]:
    def apply(step: Step) -> None:
        first = step.live if name == "slots" else len(step.lengths)
        getattr(step, name)[first:] = value

    return apply


def nan_rows(step: Step) -> None:
    for x in (step.q, step.k, step.v):
        x[step.live :] = math.nan


def stale(step: Step) -> None:
    """The tail of the step before: lengths, tables and slots of a request that is still live."""
    n = len(step.lengths)
    step.lens[n:], step.tables[n:], step.slots[step.live :] = (
        step.lens[0].clone(),
        step.tables[0].clone(),
        step.slots[0],
    )


GARBAGE: dict[str, Callable[[Step], None]] = {
    "huge lengths": fill("lens", INT32_MAX),
    "negative lengths": fill("lens", -7),
    "slot zero": fill("slots", 0),
    "huge slots": fill("slots", 2**62),
    "very negative slots": fill("slots", -(2**62)),
    "huge tables": fill("tables", INT32_MAX),
    "negative tables": fill("tables", -INT32_MAX),
    "NaN rows": nan_rows,
    "stale metadata": stale,
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("queries", [1, 2])
def test_pad_rows_are_zeros_and_touch_nothing_whatever_they_hold(name: str, queries: int, device: str) -> None:
    def prepared() -> Step:
        return Step([5, 16, 2], queries=queries, pad=2)

    clean, dirty = prepared(), prepared()
    for other in ("stale metadata", "NaN rows", name):
        GARBAGE[other](dirty)
    expected, found = clean.run(device), dirty.run(device)
    assert torch.equal(bits(found[: clean.live]), bits(expected[: clean.live]))
    assert torch.equal(bits(found[clean.live :]), torch.zeros_like(bits(found[clean.live :])))
    for cache in ("k_cache", "v_cache"):
        assert torch.equal(getattr(dirty.kv, cache)[:-1], getattr(clean.kv, cache)[:-1])


def test_a_cache_slot_that_no_live_row_owns_may_hold_nan(device: str) -> None:
    clean, dirty = Step([5, 16, 2], pad=1), Step([5, 16, 2], pad=1)
    owned = {dirty.slot(i, p) for i, n in enumerate(dirty.lengths) for p in range(n)}
    others = [s for s in range(dirty.kv.num_slots + BLOCK) if s not in owned]
    dirty.kv.k_cache.flatten(0, 1)[others] = math.nan
    dirty.kv.v_cache.flatten(0, 1)[others] = math.nan
    assert torch.equal(bits(dirty.run(device)), bits(clean.run(device)))


def test_entries_of_a_live_table_past_its_length_may_hold_anything(device: str) -> None:
    clean, dirty = Step([5, 9]), Step([5, 9])
    dirty.tables[0, 2:], dirty.tables[1, 3:] = INT32_MAX, -INT32_MAX
    assert torch.equal(bits(dirty.run(device)), bits(clean.run(device)))


@pytest.mark.parametrize("slot", [-1, 10**9])
def test_a_live_rows_slot_outside_the_cache_is_not_written(slot: int, device: str) -> None:
    step = Step([5, 9])
    step.slots[0] = slot
    before = step.kv.k_cache.clone()
    before.flatten(0, 1)[step.slots[1]] = step.k[1]
    step.run(device)
    assert torch.equal(step.kv.k_cache[:-1], before[:-1])


def test_nan_of_one_live_request_stays_with_it(device: str) -> None:
    clean, dirty = Step([5, 9]), Step([5, 9])
    dirty.v[0] = math.nan
    expected, found = clean.run(device), dirty.run(device)
    assert found[0].isnan().all()
    assert torch.equal(bits(found[1]), bits(expected[1]))


# --- decode may be recorded ----------------------------------------------------------------------------------


def flat_decode(*tensors: torch.Tensor) -> torch.Tensor:
    q, k, v, k_cache, v_cache, slots, lens, tables, live = tensors
    meta = AttentionMetaData(lens, slots, lens, tables, live, max_seqlen_q=1)
    return paged_attention.decode(q, k, v, KVCacheTensor(k_cache, v_cache), meta, SCALE)


def flat_arguments(step: Step) -> list[torch.Tensor]:
    live = torch.tensor([step.live], dtype=torch.int32)
    tensors = [step.q, step.k, step.v, step.kv.k_cache, step.kv.v_cache, step.slots, step.lens, step.tables, live]
    return [tensor.clone() for tensor in tensors]


def test_a_decode_traced_at_length_one_is_right_at_every_later_length() -> None:
    """Tracing with fake tensors raises on any read of device data, and what it kept of this step would show in the
    next.
    """
    traced = make_fx(flat_decode, tracing_mode="fake")(*flat_arguments(Step([1, 1], pad=1)))
    for seed, lengths in enumerate([[1, 16], [5, 9], [13, 4]]):
        step = Step(lengths, pad=1, seed=seed)
        arguments = flat_arguments(step)
        assert torch.equal(bits(traced(*arguments)), bits(step.run()))
        assert torch.equal(arguments[3], step.kv.k_cache)


def test_fewer_live_rows_than_traced_leave_the_rest_zero() -> None:
    traced = make_fx(flat_decode, tracing_mode="fake")(*flat_arguments(Step([5, 9, 7])))
    step = Step([5, 9], pad=1)
    assert torch.equal(bits(traced(*flat_arguments(step))), bits(step.run()))


# --- prefill -------------------------------------------------------------------------------------------------


def prefill(
    kv: KVCacheTensor, tables: torch.Tensor, qkv: list[torch.Tensor], spans: list[tuple[int, int]], pad: int = 0
) -> torch.Tensor:
    """Prefill tokens `spans[i] = (first, last + 1)` of each request from `qkv`, [requests, tokens, heads, d] each."""
    rows = [(i, p) for i, (first, end) in enumerate(spans) for p in range(first, end)]
    q, k, v = (torch.stack([x[i, p] for i, p in rows] + [torch.full_like(x[0, 0], math.nan)] * pad) for x in qkv)
    slots = [int(tables[i, p // BLOCK]) * BLOCK + p % BLOCK for i, p in rows] + [-1] * pad
    meta = AttentionMetaData(
        cu_seqlens_q=torch.zeros(1, dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        context_lens=torch.tensor([end for _, end in spans], dtype=torch.int32),
        block_tables=tables,
        live_rows=torch.tensor([len(rows)], dtype=torch.int32),
        state=AttnState.PREFILL_PREFIX,
        seq_lens_q=[end - first for first, end in spans],
        seq_lens_k=[end for _, end in spans],
    )
    return paged_attention.prefill(q, k, v, kv, meta, SCALE)


@pytest.fixture
def prompts() -> tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    kv = Step([1], width=11).kv
    tables = torch.randperm(12, generator=generator).view(3, 4).to(torch.int32)
    qkv = [torch.randn(3, 16, heads, DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return kv, tables, qkv


def causal(qkv: list[torch.Tensor], request: int, position: int) -> torch.Tensor:
    q, k, v = (x[request] for x in qkv)
    return naive(q[position], k[: position + 1], v[: position + 1])


@pytest.mark.parametrize("chunk", [512, 3])
def test_prefill_equals_causal_attention_computed_row_by_row(
    prompts: tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "QUERY_CHUNK", chunk)
    kv, tables, qkv = prompts
    ends = [7, 16, 1]
    out = prefill(kv, tables, qkv, [(0, end) for end in ends])
    assert_close(out, torch.stack([causal(qkv, i, p) for i, end in enumerate(ends) for p in range(end)]))


def test_a_prompt_in_two_chunks_sees_its_cached_prefix(
    prompts: tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]],
) -> None:
    kv, tables, qkv = prompts
    prefill(kv, tables, qkv, [(0, 5), (0, 8), (0, 1)])
    out = prefill(kv, tables, qkv, [(5, 11), (8, 9), (1, 16)])
    rows = [(0, p) for p in range(5, 11)] + [(1, 8)] + [(2, p) for p in range(1, 16)]
    assert_close(out, torch.stack([causal(qkv, i, p) for i, p in rows]))


def test_pad_rows_of_a_prefill_are_zeros_and_change_no_bit(
    prompts: tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]],
) -> None:
    kv, tables, qkv = prompts
    spans = [(0, 7), (0, 3), (0, 1)]
    plain, cache = prefill(kv, tables, qkv, spans), kv.k_cache.clone()
    padded = prefill(kv, tables, qkv, spans, pad=5)
    assert torch.equal(bits(padded[:11]), bits(plain))
    assert torch.equal(bits(padded[11:]), torch.zeros_like(bits(padded[11:])))
    assert torch.equal(kv.k_cache, cache)


def test_decode_after_prefill_equals_a_longer_prefill(
    prompts: tuple[KVCacheTensor, torch.Tensor, list[torch.Tensor]],
) -> None:
    kv, tables, qkv = prompts
    prefill(kv, tables, qkv, [(0, 4), (0, 8), (0, 11)])
    last = [4, 8, 11]
    q, k, v = (torch.stack([x[i, p] for i, p in enumerate(last)]) for x in qkv)
    slots = torch.tensor([int(tables[i, p // BLOCK]) * BLOCK + p % BLOCK for i, p in enumerate(last)])
    lens = torch.tensor([p + 1 for p in last], dtype=torch.int32)
    meta = AttentionMetaData(lens, slots, lens, tables, torch.tensor([3], dtype=torch.int32))
    out = paged_attention.decode(q, k, v, kv, meta, SCALE)
    assert_close(out, torch.stack([causal(qkv, i, p) for i, p in enumerate(last)]))


# --- precision -----------------------------------------------------------------------------------------------


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    step = Step([16, 9])
    low = Step([16, 9])
    for name in ("q", "k", "v"):
        rounded = getattr(step, name).bfloat16()
        setattr(low, name, rounded)
        setattr(step, name, rounded.float())
    step.kv = KVCacheTensor(step.kv.k_cache.bfloat16().float(), step.kv.v_cache.bfloat16().float())
    low.kv = KVCacheTensor(step.kv.k_cache.bfloat16(), step.kv.v_cache.bfloat16())
    assert torch.equal(low.run(), step.run().bfloat16())


def test_float64_is_computed_in_float64() -> None:
    step = Step([16, 9])
    for name in ("q", "k", "v"):
        setattr(step, name, getattr(step, name).double())
    step.kv = KVCacheTensor(step.kv.k_cache.double(), step.kv.v_cache.double())
    expected = step.expected()
    assert float((step.run() - expected).norm() / expected.norm()) < 1e-14


# --- the operator --------------------------------------------------------------------------------------------


@pytest.fixture
def layer() -> tuple[Config, Attention]:
    config = Config(dtype=torch.float32, device="cpu")
    return config, Attention(
        config, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, layer_name="model.layers.0.attn"
    )


def live_context(config: Config, step: Step, kv: dict[str, KVCacheTensor]) -> AbstractContextManager[ForwardContext]:
    context = Context(torch.zeros(1, dtype=torch.int64), running_bs=len(step.lens), running_tokens=step.q.shape[0])
    return forward_context(step.metadata(), config, context, kv_cache_data=kv)


def test_the_operator_reads_the_live_context_each_time_it_runs(layer: tuple[Config, Attention]) -> None:
    config, attention = layer
    for lengths in ([1, 16], [5, 9]):
        step, twin = Step(lengths, pad=1), Step(lengths, pad=1)
        with live_context(config, step, {attention.layer_name: step.kv}):
            out = attention(step.q, step.k, step.v)
        assert torch.equal(bits(out), bits(twin.run()))


def test_the_operator_declares_what_it_changes_and_has_a_fake(layer: tuple[Config, Attention]) -> None:
    config, attention = layer
    step = Step([5, 9], pad=1)
    arguments = (step.q, step.k, step.v, torch.full_like(step.q, math.nan), attention.layer_name)
    with live_context(config, step, {attention.layer_name: step.kv}):
        result = torch.library.opcheck(torch.ops.aiter.unified_attention_with_output.default, arguments)
    assert set(result.values()) == {"SUCCESS"}


def test_the_operators_body_is_an_eager_region() -> None:
    assert getattr(operator_body, "__eager_region__", False)


def test_a_dummy_run_before_any_cache_is_bound_gives_zeros(layer: tuple[Config, Attention]) -> None:
    config, attention = layer
    step = Step([5, 9])
    with live_context(config, step, {}):
        out = attention(step.q, step.k, step.v)
    assert out.shape == step.q.shape
    assert torch.equal(out, torch.zeros_like(step.q))


def test_attention_outside_a_step_raises_instead_of_giving_zeros(layer: tuple[Config, Attention]) -> None:
    step = Step([5])
    reset_forward_context()
    with pytest.raises(RuntimeError, match=r"without attention metadata.*set_forward_context"):
        layer[1](step.q, step.k, step.v)


def test_a_layer_without_a_cache_in_the_context_is_named(layer: tuple[Config, Attention]) -> None:
    config, attention = layer
    step = Step([5])
    with (
        live_context(config, step, {"another": step.kv}),
        pytest.raises(LookupError, match=r"'model\.layers\.0\.attn' is not a layer with a KV cache"),
    ):
        attention(step.q, step.k, step.v)


def test_a_second_model_over_one_config_is_refused(layer: tuple[Config, Attention]) -> None:
    with pytest.raises(ValueError, match="registered already; build each model over a Config of its own"):
        Attention(layer[0], num_heads=4, num_kv_heads=2, head_dim=16, layer_name="model.layers.0.attn")


def test_heads_that_do_not_divide_into_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="5 heads do not divide into groups of 2"):
        Attention(Config(device="cpu"), num_heads=5, num_kv_heads=2, head_dim=16, layer_name="a")


# --- metadata that does not fit ------------------------------------------------------------------------------


def test_rows_that_are_no_rectangle_of_requests_and_queries_are_refused() -> None:
    step = Step([5, 9])
    step.q = step.q[:1]
    with pytest.raises(ValueError, match="1 rows for 2 block tables of 1 queries each; pad the step to 2 rows"):
        step.run()


@pytest.mark.parametrize("name", ["slots", "lens"])
def test_metadata_of_another_length_than_the_step_is_refused(name: str) -> None:
    step = Step([5, 9])
    setattr(step, name, getattr(step, name)[:1])
    with pytest.raises(ValueError, match="one entry a row, context_lens one a request"):
        step.run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_lens_q": None}, "planned on the host"),
        ({"seq_lens_q": [0, 3]}, "1 <= new <= total"),
        ({"seq_lens_q": [6, 3]}, "1 <= new <= total"),
        ({"seq_lens_q": [5, 9]}, "14 tokens in 2 requests got 2 rows"),
        ({"seq_lens_q": [1, 1], "seq_lens_k": [5, 17]}, "17 tokens does not fit its block table of 16 slots"),
    ],
)
def test_host_lengths_that_cannot_be_are_refused(changes: dict[str, list[int] | None], message: str) -> None:
    step = Step([5, 9])
    meta = step.metadata()
    for name, value in {"seq_lens_k": [5, 9], **changes}.items():
        setattr(meta, name, value)
    with pytest.raises(ValueError, match=message):
        paged_attention.prefill(step.q, step.k, step.v, step.kv, meta, SCALE)


# --- the cache itself ----------------------------------------------------------------------------------------


def test_an_allocated_cache_has_one_scratch_block_more_and_counts_its_bytes() -> None:
    sizes = {"block_size": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": torch.bfloat16}
    caches = allocate_kv_cache(["a", "b"], num_blocks=10, device="cpu", **sizes)  # type: ignore[arg-type]
    assert caches["a"].num_blocks == 10
    assert caches["a"].k_cache.shape[0] == 11
    total = sum(x.nbytes for kv in caches.values() for x in (kv.k_cache, kv.v_cache))
    assert total == 11 * kv_bytes_per_block(2, 4, 2, 16, torch.bfloat16)


@pytest.mark.parametrize("blocks", [0, -1])
def test_a_cache_without_blocks_is_refused(blocks: int) -> None:
    with pytest.raises(ValueError, match="holds nothing; both must be at least 1"):
        allocate_kv_cache(
            ["a"], num_blocks=blocks, block_size=4, num_kv_heads=2, head_dim=16, dtype=torch.float32, device="cpu"
        )


def test_keys_and_values_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"both must be \[blocks \+ 1"):
        KVCacheTensor(torch.zeros(2, 4, 2, 16), torch.zeros(2, 4, 2, 8))
