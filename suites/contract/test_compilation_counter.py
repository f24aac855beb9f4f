"""A counter that nobody compares exactly hides thirty compiles where three were due."""

from __future__ import annotations

import pytest

from atom_impl.utils.compilation_counter import CompilationCounter


def test_expected_deltas_pass_and_other_counters_are_not_judged() -> None:
    counter = CompilationCounter()
    with counter.expect(num_graphs_seen=1, num_inductor_compiles=0):
        counter.num_graphs_seen += 1
        counter.num_backend_compilations += 5


@pytest.mark.parametrize("grown", [0, 1, 3])
def test_one_too_few_or_too_many_is_an_error_that_names_both_numbers(grown: int) -> None:
    counter = CompilationCounter(num_inductor_compiles=7)
    with (
        pytest.raises(AssertionError, match=f"num_inductor_compiles changed by {grown}, expected 2"),
        counter.expect(num_inductor_compiles=2),
    ):
        counter.num_inductor_compiles += grown


def test_the_message_tells_what_else_changed() -> None:
    counter = CompilationCounter()
    with pytest.raises(AssertionError, match=r"also changed: .*num_eager_compiles \+4"), counter.expect(graph_breaks=1):
        counter.num_eager_compiles += 4


def test_an_unknown_counter_is_an_error_before_anything_runs() -> None:
    ran = []
    with pytest.raises(ValueError, match="num_graph_seen"), CompilationCounter().expect(num_graph_seen=1):
        ran.append(1)
    assert not ran


def test_misses_are_judged_by_reason_and_in_sum() -> None:
    counter = CompilationCounter()
    with counter.expect(**{"cache_misses": 3, "cache_misses.corrupt": 2, "cache_misses.foreign": 0}):
        counter.cache_misses.update(["corrupt", "corrupt", "absent"])


def test_an_error_in_the_block_is_not_replaced_by_the_count() -> None:
    counter = CompilationCounter()
    with pytest.raises(KeyError), counter.expect(num_graphs_seen=1):
        raise KeyError("the real error")


def test_a_clone_stands_still() -> None:
    counter = CompilationCounter()
    clone = counter.clone()
    counter.num_graphs_seen += 1
    counter.cache_misses["absent"] += 1
    assert clone.as_dict()["num_graphs_seen"] == 0
    assert clone.as_dict()["cache_misses"] == 0
