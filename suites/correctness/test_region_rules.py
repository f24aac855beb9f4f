"""Guards against the rules of regions and recordings that only show in a corner: a region that writes in place, an
alias that stops being one, a result that changes its kind, weights that moved and were recorded again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from atom_impl.device import get_device
from atom_impl.graphs.recording import Segment
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.custom_register import mark_spliting_op
from atom_impl.utils.region_graph import ReplayError, TokenGraph, eager_region, token_graph
from atom_impl.utils.step_ledger import CopyKind
from suites.correctness.region_steps import WIDTH, Step, recorded, run

pytestmark = pytest.mark.usefixtures("clean_pool")
ROWS = 4


@pytest.fixture
def x(device: str) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, device=get_device(device).torch_device)


def replay(graph: TokenGraph, x: torch.Tensor, step: Step | None = None) -> torch.Tensor:
    with (step or Step(ROWS, x.device))("replay"):
        return graph.replay(x, phase="decode")


@torch.inference_mode()
def test_a_region_that_writes_its_argument_and_returns_nothing_costs_no_copy(x: torch.Tensor) -> None:
    scale = {"now": 2.0}

    @eager_region
    def into(source: torch.Tensor, out: torch.Tensor) -> None:
        torch.mul(source, scale["now"], out=out)

    def forward(t: torch.Tensor) -> torch.Tensor:
        source, out = t + 1, torch.empty_like(t)
        into(source, out)
        return out - 1

    graph = recorded(forward, x, x.device)
    x.normal_()
    scale["now"], step = 5.0, Step(ROWS, x.device)
    assert torch.equal(replay(graph, x, step), (x + 1) * 5 - 1)
    assert CopyKind.HANDOFF not in step.record.copies


@torch.inference_mode()
@pytest.mark.parametrize(("is_region", "segments"), [(False, 1), (True, 2)], ids=["split op alone", "region as well"])
def test_a_split_op_breaks_a_recording_only_if_it_is_a_region_too(
    x: torch.Tensor, is_region: bool, segments: int
) -> None:
    @mark_spliting_op(is_custom=False)
    def doubled(t: torch.Tensor) -> torch.Tensor:
        return t * 2

    called = eager_region(doubled) if is_region else doubled
    with compilation_counter.expect(num_cudagraph_captured=segments):
        graph = recorded(lambda t: called(t + 1) + 1, x, x.device)
    (recording,) = graph.recordings().values()
    assert (recording.segments, recording.regions) == (segments, segments - 1)
    x.normal_()
    assert torch.equal(replay(graph, x), (x + 1) * 2 + 1)


@torch.inference_mode()
def test_a_region_may_be_a_method_and_reads_its_object_as_it_is_now(x: torch.Tensor) -> None:
    class Scaler:
        factor = 2.0

        @eager_region
        def apply(self, t: torch.Tensor) -> torch.Tensor:
            return t * self.factor

    scaler = Scaler()
    assert torch.equal(scaler.apply(x), x * 2), "a plain call where nothing records"
    graph = recorded(lambda t: scaler.apply(t + 1) + 1, x, x.device)
    scaler.factor = -3.0
    assert torch.equal(replay(graph, x), (x + 1) * -3 + 1)


@torch.inference_mode()
def test_an_alias_that_stops_being_one_is_refused_by_name(x: torch.Tensor) -> None:
    same = {"now": True}

    @eager_region
    def maybe(t: torch.Tensor) -> torch.Tensor:
        return t if same["now"] else t.clone()

    graph = recorded(lambda t: maybe(t + 1) * 2, x, x.device)
    assert torch.equal(replay(graph, x), (x + 1) * 2)
    same["now"] = False
    with pytest.raises(ReplayError, match=r"region maybe.* the region's own argument handed back, got another tensor"):
        replay(graph, x)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda t: t.double(), r"recorded a tensor \(4, 16\) float32, got a tensor \(4, 16\) float64"),
        (lambda t: t[:3] * 1, r"got a tensor \(3, 16\)"),
        (lambda t: None, "got None"),
        (lambda t: (t, t), "returned 2 values, not 1"),
    ],
)
def test_a_result_of_another_kind_is_refused_with_both_kinds(
    changed: Callable[[torch.Tensor], Any], message: str, x: torch.Tensor
) -> None:
    make: dict[str, Callable[[torch.Tensor], Any]] = {"now": lambda t: t * 1}
    region = eager_region(lambda t: make["now"](t))
    graph = recorded(lambda t: region(t + 1) + 1, x, x.device)
    make["now"] = changed
    with pytest.raises(ReplayError, match=message):
        replay(graph, x)
    make["now"] = lambda t: t * 3
    assert torch.equal(replay(graph, x), (x + 1) * 3 + 1), "a refused replay leaves the recording as it was"


@torch.inference_mode()
def test_a_value_that_was_none_may_not_become_a_tensor(x: torch.Tensor) -> None:
    give: dict[str, Any] = {"second": None}
    region = eager_region(lambda t: (t * 2, give["second"]))
    graph = recorded(lambda t: region(t + 1)[0] + 1, x, x.device)
    give["second"] = x
    with pytest.raises(ReplayError, match=r"result\[1\]: recorded None, got a tensor"):
        replay(graph, x)


@torch.inference_mode()
def test_a_region_at_either_end_leaves_no_empty_segment(x: torch.Tensor) -> None:
    region = eager_region(lambda t: t * 2)
    graph = recorded(lambda t: region(region(t) + 1), x, x.device)
    (recording,) = graph.recordings().values()
    kinds = [type(step).__name__ for step in recording.steps]
    assert kinds == ["Region", "Segment", "Region", "Segment"], "the last segment takes the result out of the pool"
    assert all(step.nodes > 0 for step in recording.steps if isinstance(step, Segment))
    x.normal_()
    assert torch.equal(replay(graph, x), (x * 2 + 1) * 2)


@torch.inference_mode()
def test_a_bucket_that_is_asked_for_twice_is_recorded_once(x: torch.Tensor) -> None:
    calls: list[int] = []

    def forward(t: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return t + 1

    graph = recorded(forward, x, x.device)
    before = len(calls)
    with Step(ROWS, x.device)("record"):
        out = graph.record(forward, x, phase="decode")
    assert torch.equal(out, x + 1)
    assert len(calls) == before, "the second request for the bucket replays the first's recording"


@torch.inference_mode()
def test_weights_that_moved_serve_again_once_they_are_recorded_again(x: torch.Tensor) -> None:
    @token_graph
    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, device=x.device), requires_grad=False)

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return t @ self.weight

    unit: Any = Unit()
    for action in (None, "record"):
        with Step(ROWS, x.device)(action):
            unit(x)
    unit.weight.data = torch.randn(WIDTH, WIDTH, device=x.device)
    unit.token_graph.clear()
    assert unit.token_graph.captured_sizes("decode") == []
    for action in (None, "record"):
        with Step(ROWS, x.device)(action):
            unit(x)
    with Step(ROWS, x.device)("replay"):
        assert torch.equal(unit(x), x @ unit.weight)


def test_a_recording_made_without_gradients_replays_in_either_mode(x: torch.Tensor) -> None:
    region = eager_region(lambda t: t * 2)
    with torch.no_grad():
        graph = TokenGraph(device=get_device(x.device.type))
        run(graph, lambda t: region(t + 1) + 1, x, Step(ROWS, x.device), "record")
        assert torch.equal(replay(graph, x), (x + 1) * 2 + 1)
        x.normal_()
    with torch.inference_mode():
        assert torch.equal(replay(graph, x), (x + 1) * 2 + 1)
