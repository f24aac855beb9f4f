"""The documented pattern `1..8, 16, 32, ..` ends at 96 for a limit of 100, and starts with 1..8 for a limit of 4.
Batches 97 to 100 ran eagerly at a third of the speed, buckets 5 to 8 cost memory, and no test failed.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_impl.config import CompilationConfig, Config
from atom_impl.utils.ladder import automatic_ladder, documented_ladder, smallest_bucket

LIMITS = st.integers(1, 1100)


def config_with(ladder: Any = None, **settings: Any) -> Config:
    return Config(device="cpu", compilation_config=CompilationConfig(cudagraph_capture_sizes=ladder), **settings)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_default_ladder_is_the_documented_one_at_every_level(level: int) -> None:
    config = Config(device="cpu", compilation_config=CompilationConfig(level=level))
    assert config.capture_sizes == [*range(1, 9), *range(16, 513, 16)]
    assert (config.capture_sizes_added, config.capture_sizes_dropped) == ([], [])


@pytest.mark.parametrize("limit", [8, 16, 48, 256, 512])
def test_a_limit_that_the_pattern_reaches_gives_the_pattern_unchanged(limit: int) -> None:
    config = Config(device="cpu", compilation_config=CompilationConfig(cuda_graph_sizes=[limit]))
    assert config.capture_sizes == documented_ladder(limit)
    assert (config.capture_sizes_added, config.capture_sizes_dropped) == ([], [])


@pytest.mark.parametrize(
    ("limit", "max_num_seqs", "added", "dropped"),
    [
        (100, 512, [100], []),
        (12, 512, [12], []),
        (4, 512, [], [5, 6, 7, 8]),
        (512, 4, [], [5, 6, 7, 8, *range(16, 513, 16)]),
        (64, 10, [10], [16, 32, 48, 64]),
        (1, 1, [], [2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_what_is_added_or_dropped_is_said(limit: int, max_num_seqs: int, added: list[int], dropped: list[int]) -> None:
    compilation = CompilationConfig(cuda_graph_sizes=[limit])
    config = Config(device="cpu", max_num_seqs=max_num_seqs, compilation_config=compilation)
    assert (config.capture_sizes_added, config.capture_sizes_dropped) == (added, dropped)
    assert config.capture_sizes == sorted({*documented_ladder(limit), *added} - {*dropped})


def test_the_token_limit_bounds_the_ladder_because_a_bucket_must_fit_the_staging_buffers() -> None:
    config = Config(device="cpu", max_num_seqs=512, max_num_batched_tokens=20)
    assert config.capture_sizes == [*range(1, 9), 16, 20]


@given(limit=LIMITS, max_batch=LIMITS)
def test_no_batch_is_uncovered_and_no_bucket_is_out_of_reach(limit: int, max_batch: int) -> None:
    sizes = automatic_ladder(limit, max_batch).sizes
    for batch in range(1, min(limit, max_batch) + 1):
        bucket = smallest_bucket(sizes, batch)
        assert bucket is not None
        assert bucket < batch + 16
    assert sizes[-1] == min(limit, max_batch)
    assert list(sizes) == sorted(set(sizes))


@given(limit=LIMITS, max_batch=LIMITS)
def test_added_and_dropped_account_for_every_difference_from_the_pattern(limit: int, max_batch: int) -> None:
    ladder = automatic_ladder(limit, max_batch)
    documented = set(documented_ladder(limit))
    assert set(ladder.added) == set(ladder.sizes) - documented
    assert set(ladder.dropped) == documented - set(ladder.sizes)


@given(sizes=st.sets(st.integers(1, 64), min_size=1).map(sorted), needed=st.integers(1, 80))
def test_a_batch_goes_to_the_smallest_bucket_that_holds_it_or_to_none(sizes: list[int], needed: int) -> None:
    holding = [size for size in sizes if size >= needed]
    assert smallest_bucket(sizes, needed) == (holding[0] if holding else None)


def test_explicit_sizes_win_over_the_pattern_and_end_up_ascending() -> None:
    config = config_with([8, 1, 4])
    assert config.capture_sizes == [1, 4, 8]
    assert (config.capture_sizes_added, config.capture_sizes_dropped) == ([], [])


def test_several_graph_sizes_are_the_ladder_itself() -> None:
    several = CompilationConfig(cuda_graph_sizes=[3, 1])
    assert Config(device="cpu", compilation_config=several).capture_sizes == [1, 3]
    explicit = CompilationConfig(cuda_graph_sizes=[3, 1], cudagraph_capture_sizes=[7])
    assert Config(device="cpu", compilation_config=explicit).capture_sizes == [7]


def test_a_ladder_given_on_config_counts_as_explicit_and_may_not_contradict_the_other() -> None:
    assert Config(device="cpu", capture_sizes=[4, 2]).capture_sizes == [2, 4]
    assert config_with([2, 4], capture_sizes=[4, 2]).capture_sizes == [2, 4]
    with pytest.raises(ValueError, match=r"capture_sizes=\[4\]: contradicts cudagraph_capture_sizes=\[2\]"):
        config_with([2], capture_sizes=[4])


def test_the_callers_lists_are_copied_and_never_sorted() -> None:
    ladder, sizes, prefill = [8, 2, 4], [8, "cudagraph_capture_sizes"], [64, 16]
    compilation = CompilationConfig(level=3, cudagraph_capture_sizes=ladder, compile_sizes=sizes)  # type: ignore[arg-type]
    config = Config(device="cpu", compilation_config=compilation, prefill_capture_sizes=prefill)
    assert config.capture_sizes is not None
    config.capture_sizes.sort(reverse=True)
    config.capture_sizes.append(99)
    assert ladder == [8, 2, 4]
    assert sizes == [8, "cudagraph_capture_sizes"]
    assert prefill == [64, 16]
    assert compilation.cudagraph_capture_sizes == [8, 2, 4]
    assert compilation.compile_sizes == sizes


WRONG_LISTS = [
    ([], "at least one size"),
    ([0, 1], "entry 0: must be an integer of at least 1"),
    ([-2], "entry -2: must be an integer of at least 1"),
    ([True], "entry True: must be an integer"),
    ([2.0], "entry 2.0: must be an integer"),
    (["4"], "entry '4': must be an integer"),
    ([4, 2, 4], "4 occurs more than once"),
    ("124", "must be a list"),
    (8, "must be a list"),
    ({1, 2}, "must be a list"),
]


@pytest.mark.parametrize(("sizes", "rule"), WRONG_LISTS)
def test_an_explicit_list_that_breaks_a_rule_is_refused_by_name(sizes: Any, rule: str) -> None:
    with pytest.raises(ValueError, match="cudagraph_capture_sizes") as caught:
        CompilationConfig(cudagraph_capture_sizes=sizes)
    assert rule in str(caught.value)


@pytest.mark.parametrize("sizes", [[0], [-1], [True], ["512"], [1, 1], [512, 0]])
def test_graph_sizes_obey_the_same_rules(sizes: Any) -> None:
    with pytest.raises(ValueError, match="cuda_graph_sizes"):
        CompilationConfig(cuda_graph_sizes=sizes)


@pytest.mark.parametrize("field", ["cudagraph_capture_sizes", "cuda_graph_sizes"])
def test_a_bucket_that_no_batch_can_reach_is_refused_with_the_limit_that_cuts_it(field: str) -> None:
    compilation = CompilationConfig(**{field: [1, 9]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"{field} entry 9: .*max_num_seqs is 8; .*raise max_num_seqs to at least 9"):
        Config(device="cpu", max_num_seqs=8, compilation_config=compilation)
    with pytest.raises(ValueError, match=r"max_num_batched_tokens is 8"):
        Config(device="cpu", max_num_batched_tokens=8, compilation_config=compilation)


def test_prefill_buckets_are_token_counts_bounded_by_the_token_limit() -> None:
    config = Config(device="cpu", max_num_seqs=2, max_num_batched_tokens=64, prefill_capture_sizes=[64, 16])
    assert config.prefill_capture_sizes == [16, 64]
    assert Config(device="cpu").prefill_capture_sizes == []
    with pytest.raises(ValueError, match=r"prefill_capture_sizes entry 65: .*max_num_batched_tokens is 64"):
        Config(device="cpu", max_num_batched_tokens=64, prefill_capture_sizes=[65])
    with pytest.raises(ValueError, match="prefill_capture_sizes entry 0"):
        Config(device="cpu", prefill_capture_sizes=[0])
