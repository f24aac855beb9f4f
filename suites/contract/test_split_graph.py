"""`splitting_ops` was a list that nobody read: the graph split at marked functions only, and attention was compiled
in.

Every spelling of a name must split, the order of the original must be kept, and a name that matches nothing must be
said.
"""

from __future__ import annotations

import logging

import pytest
import torch

from atom_impl.compilation.split_ops import DEFAULT_SPLITTING_OPS, normalise_op_name
from atom_impl.utils.backends import SplitItem, split_graph
from atom_impl.utils.custom_register import direct_register_custom_op, mark_spliting_op
from suites.contract.toy_pieces import op_graph


def contract_split(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def contract_other(x: torch.Tensor) -> torch.Tensor:
    return x - 1


direct_register_custom_op("contract_split", contract_split, [], torch.empty_like)
direct_register_custom_op("contract_other", contract_other, [], torch.empty_like)

SPLIT = torch.ops.aiter.contract_split
OTHER = torch.ops.aiter.contract_other.default
NAME = "aiter.contract_split"
X = torch.tensor([0.5, -2.0])


def shape_of(items: list[SplitItem]) -> list[bool]:
    return [item.is_splitting_graph for item in items]


@pytest.mark.parametrize(
    "spelling",
    [
        "aiter.contract_split",
        "aiter::contract_split",
        "aiter.contract_split.default",
        "aiter::contract_split.default",
        "torch.ops.aiter.contract_split",
        "torch.ops.aiter.contract_split.default",
        " aiter.contract_split ",
    ],
)
@pytest.mark.parametrize("target", [SPLIT, SPLIT.default], ids=["packet", "overload"])
def test_a_name_splits_in_every_spelling(spelling: str, target: object) -> None:
    _, items = split_graph(op_graph([torch.relu, target, torch.tanh]), [spelling])
    assert shape_of(items) == [False, True, False]


def test_another_op_of_the_namespace_does_not_split() -> None:
    _, items = split_graph(op_graph([torch.relu, OTHER, torch.tanh]), [NAME])
    assert shape_of(items) == [False]


def test_another_overload_keeps_its_name() -> None:
    assert normalise_op_name("aten.add.Tensor") == "aten::add.Tensor"
    assert normalise_op_name("aten::add.default") == normalise_op_name("torch.ops.aten.add")


def test_a_marked_op_splits_without_being_named() -> None:
    @mark_spliting_op(is_custom=True, gen_fake=torch.empty_like)
    def contract_marked_split(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    _, items = split_graph(op_graph([torch.relu, torch.ops.aiter.contract_marked_split.default]), [])
    assert shape_of(items) == [False, True]


def test_a_marked_plain_function_splits() -> None:
    @mark_spliting_op(is_custom=False)
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    _, items = split_graph(op_graph([torch.relu, plain, torch.relu]), [])
    assert shape_of(items) == [False, True, False]


def test_adjacent_leading_and_trailing_split_ops_stand_alone_and_leave_no_empty_parts() -> None:
    graph = op_graph([SPLIT, torch.relu, SPLIT, SPLIT.default, torch.tanh, SPLIT])
    stitched, items = split_graph(graph, [NAME])
    assert shape_of(items) == [True, False, True, True, False, True]
    assert torch.equal(stitched(X), graph(X))
    for item in items:
        calls = [node for node in item.graph.graph.nodes if node.op == "call_function"]
        assert len(calls) == 1


def test_items_come_in_order_of_execution_also_beyond_ten() -> None:
    graph = op_graph([torch.relu, SPLIT] * 7)
    stitched, items = split_graph(graph, [NAME])
    ids = [item.graph_id for item in items]
    assert ids == sorted(ids)
    assert [item.submod_name for item in items] == [f"submod_{number}" for number in ids]
    assert torch.equal(stitched(X), graph(X))


def test_writes_in_place_keep_their_place() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    held = graph.call_method("clone", (x,))
    read_before = graph.call_function(torch.add, (held, 0))
    graph.call_function(SPLIT, (held,))
    graph.call_method("zero_", (held,))
    read_after = graph.call_function(torch.add, (held, 1))
    graph.output((read_before, read_after))
    stitched, _ = split_graph(torch.fx.GraphModule(torch.nn.Module(), graph), [NAME])
    before, after = stitched(X)
    assert torch.equal(before, X)
    assert torch.equal(after, torch.ones_like(X))


def test_no_names_and_no_marks_leave_one_piece() -> None:
    stitched, items = split_graph(op_graph([torch.relu, SPLIT, torch.tanh]), [])
    assert shape_of(items) == [False]
    assert torch.equal(stitched(X), torch.tanh(torch.relu(X) * 3))


def test_a_name_that_matches_nothing_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        split_graph(op_graph([torch.relu, SPLIT]), [NAME, "aiter.no_such_op"])
    assert "aiter.no_such_op" in caplog.text
    assert NAME not in caplog.text


def test_an_absent_default_is_silent_beside_a_split_and_named_when_nothing_splits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        split_graph(op_graph([torch.relu, SPLIT]), [NAME, *DEFAULT_SPLITTING_OPS])
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        split_graph(op_graph([torch.relu]), DEFAULT_SPLITTING_OPS)
    assert "aiter.mla_attention" in caplog.text
