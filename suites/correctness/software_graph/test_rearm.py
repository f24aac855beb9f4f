"""A counter that was zeroed once, outside the graph, is right in the first replay and wrong in the second.

A split reduction counts arrivals, and its last arrival writes the sum. Values show that only when somebody replays
twice and looks; what the graph reads before it writes shows it at once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from atom_impl.device.software import SoftwareDevice, SoftwareGraph, launch

pytestmark = pytest.mark.usefixtures("inference")

SPLITS = 2
ROW = torch.tensor([1])
ROWS = torch.zeros(4, 8, dtype=torch.int64)


def captured(function: Callable[[], object]) -> SoftwareGraph:
    graph = SoftwareGraph()
    graph.capture_begin()
    function()
    graph.capture_end()
    return graph


def arrive(out: torch.Tensor, partial: torch.Tensor, arrivals: torch.Tensor) -> None:
    """One split of a reduction: whoever arrives last sums up."""
    arrivals.add_(1)
    out.copy_(torch.where(arrivals == SPLITS, partial.sum(0), out))


@pytest.mark.parametrize("rearmed", [False, True])
def test_an_arrival_counter_is_named_unless_the_graph_sets_it_back_itself(rearmed: bool) -> None:
    x, out, arrivals = torch.randn(SPLITS, 8), torch.zeros(8), torch.zeros(1, dtype=torch.int32)

    def forward() -> None:
        if rearmed:
            arrivals.zero_()
        for _ in range(SPLITS):
            launch(arrive, out, x, arrivals, name="split_reduce", written=(0, 2))

    graph = captured(forward)
    found = {op.tensor.data_ptr(): op for op in graph.reads_before_writes()}
    right = []
    for _ in range(3):
        x.normal_()
        graph.replay()
        right.append(torch.equal(out, x.sum(0)))
    assert right == ([True] * 3 if rearmed else [True, False, False])
    assert (arrivals.data_ptr() in found) is not rearmed
    if not rearmed:
        counter = found[arrivals.data_ptr()]
        assert counter.tensor.shape == (1,)
        assert counter.read_by.startswith("split_reduce([8] float32, [2, 8] float32, [1] int32), recorded at ")
        assert counter.written_by == counter.read_by


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("added to in place", lambda x, s: s.add_(x), True),
        ("read, then overwritten", lambda x, s: (x.add(s), s.copy_(x)), True),
        ("half written, then read whole, then written", lambda x, s: (s[:2].copy_(x[:2]), s.neg(), s.zero_()), True),
        ("accumulated by index", lambda x, s: s.index_put_((ROW,), x[:1], accumulate=True), True),
        ("scattered with a reduction", lambda x, s: s.scatter_(0, ROWS, x, reduce="add"), True),
        ("overwritten", lambda x, s: s.copy_(x), False),
        ("overwritten, then added to", lambda x, s: (s.zero_(), s.add_(x)), False),
        ("written through out=", lambda x, s: torch.mul(x, 2, out=s), False),
        ("some rows written", lambda x, s: s.index_copy_(0, ROW, x[:1]), False),
        ("some rows written, then all read", lambda x, s: (s.index_put_((ROW,), x[:1]), s.sum()), False),
        ("read only", lambda x, s: x @ s.t(), False),
        ("another half read than is written", lambda x, s: (s[:2].neg(), s[2:].copy_(x[2:])), False),
    ],
)
def test_only_what_is_read_as_it_was_found_and_then_changed_is_named(
    name: str, step: Callable[[torch.Tensor, torch.Tensor], object], expected: bool
) -> None:
    x, state = torch.randn(4, 8), torch.randn(4, 8)
    found = captured(lambda: step(x, state)).reads_before_writes()
    assert [op.tensor.untyped_storage().data_ptr() for op in found] == [state.data_ptr()] * expected, name


def test_a_segment_may_set_back_what_a_later_one_counts_up() -> None:
    device, arrivals, graphs = SoftwareDevice(), torch.zeros(1, dtype=torch.int32), []
    with device.recording():
        for step in (arrivals.zero_, lambda: arrivals.add_(1)):
            graphs.append(device.graph())
            graphs[-1].capture_begin()
            step()
            graphs[-1].capture_end()
    assert device.reads_before_writes(graphs) == []
    assert [op.tensor.data_ptr() for op in graphs[1].reads_before_writes()] == [arrivals.data_ptr()]
    assert len(device.reads_before_writes(reversed(graphs))) == 1


def test_what_lies_in_the_pool_is_made_anew_by_each_replay_and_not_named() -> None:
    x, out = torch.randn(4, 8), torch.zeros(4, 8)
    graph = captured(lambda: out.copy_((x + 1).add_(2)))
    assert graph.reads_before_writes() == []
