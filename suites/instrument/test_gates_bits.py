"""Tolerances let stale rows and zeroed logits through; bits do not, if they are compared as bits."""

from __future__ import annotations

import pytest
import torch

from harness.probes.numerics.bits import difference, equal_share, max_ulp
from harness.probes.numerics.kv import KvImage, poison_all_but, slots_of

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_equal_nans_are_equal_bits(dtype: torch.dtype) -> None:
    rows = torch.full((2, 3), torch.nan, dtype=dtype)
    assert difference(rows, rows.clone()) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_zero_is_not_plus_zero(dtype: torch.dtype) -> None:
    assert difference(torch.zeros(1, 1, dtype=dtype), -torch.zeros(1, 1, dtype=dtype)) is not None


def test_the_first_differing_row_and_its_elements_are_named() -> None:
    left = torch.zeros(4, 8)
    right = left.clone()
    right[2, 1:4] = 1.0
    right[3, 0] = torch.nan
    found = difference(left, right)
    assert found is not None
    assert (found.rows, found.total_rows, found.elements, found.nan_elements) == ((2, 3), 4, 3, 0)


@pytest.mark.parametrize("other", [torch.zeros(2, 4), torch.zeros(3, 3, dtype=torch.bfloat16)])
def test_tensors_that_cannot_be_compared_are_an_error_and_not_a_difference(other: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="cannot compare"):
        difference(torch.zeros(3, 3), other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_numbers_next_to_one_are_one_ulp_away_and_zero_is_crossed_without_a_jump(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    one = torch.ones(1, 1, dtype=dtype)
    assert max_ulp(one, one + limits.eps) == 1
    assert max_ulp(one, one - limits.eps / 2) == 1
    smallest = torch.full((1, 1), limits.smallest_normal, dtype=dtype)
    assert max_ulp(smallest, -smallest) == 2 * max_ulp(smallest, torch.zeros(1, 1, dtype=dtype))
    assert max_ulp(torch.zeros(1, 1, dtype=dtype), -torch.zeros(1, 1, dtype=dtype)) == 0


def test_the_share_of_equal_bits_counts_elements() -> None:
    assert equal_share(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0]])) == 0.5


def cache() -> list[torch.Tensor]:
    return [torch.arange(24.0).reshape(3, 4, 2) + i for i in range(2)]


def test_a_write_outside_the_steps_own_slots_is_found_with_its_place() -> None:
    live = cache()
    image = KvImage(live)
    live[0][0, 1] = -1.0  # the step's own slot
    live[1][2, 3] = -1.0
    image.restore_slots(live, [1])
    stray = image.stray_write(live)
    assert stray is not None
    assert str(stray) == "KV tensor 1, block 2, offset 3 (1 slots in that tensor)"


def test_writes_to_the_steps_own_slots_are_no_stray_writes() -> None:
    live = cache()
    image = KvImage(live)
    live[1][1, 0] = 7.0
    assert image.stray_write(live) is not None
    image.restore_slots(live, [4])
    assert image.stray_write(live) is None


def test_a_nan_that_was_there_before_is_no_stray_write_and_a_new_one_is() -> None:
    live = [torch.full((2, 2, 3), torch.nan, dtype=torch.bfloat16)]  # rows of 6 bytes: no whole words
    image = KvImage(live)
    assert image.stray_write(live) is None
    live[0][1, 1, 2] = 0.0
    stray = image.stray_write(live)
    assert stray is not None
    assert stray.slot == 3


def test_an_image_puts_back_every_bit() -> None:
    live = cache()
    image = KvImage(live)
    for tensor in live:
        tensor.fill_(torch.nan)
    image.restore(live)
    assert all(difference(a, b) is None for a, b in zip(live, cache(), strict=True))


def test_poison_leaves_only_the_named_slots() -> None:
    live = cache()
    poison_all_but(live, [5])
    assert torch.equal(slots_of(live, [5])[0], cache()[0][1, 1][None])
    assert int(live[0].isnan().sum()) == 22


def test_poison_with_nothing_to_keep_fills_the_whole_cache() -> None:
    live = cache()
    poison_all_but(live, [])
    assert all(bool(tensor.isnan().all()) for tensor in live)


def test_a_session_without_a_cache_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="no KV tensors"):
        KvImage([])
