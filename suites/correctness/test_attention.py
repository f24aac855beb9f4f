"""Attention over the paged cache, and what may not leak through it.

A pad row with slot -1 wrote into the last slot of the cache, which was another request's. A slot past a request's
length held NaN, and a weight of zero did not remove it. A split count taken from a host length was frozen by a
recording made at length 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from atom_impl.model_ops import paged_attention
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.utils.forward_context import AttentionMetaData
from suites.correctness.attention_steps import BLOCK, INT32_MAX, SCALE, Step, assert_close, bits


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
