"""Guards against the faults of region graphs: stale inputs, moved addresses, results that die before they are read.

Every test records on the CPU's software graph (or the GPU, with --device cuda), changes something, and compares a
replay with a plain run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from atom_impl.config import Config
from atom_impl.device import CaptureError, get_device
from atom_impl.utils.forward_context import Context, ForwardContext, forward_context, get_forward_context
from atom_impl.utils.region_graph import (
    MissingRecordingError,
    ReplayError,
    ReqGraph,
    TokenGraph,
    current_session,
    eager_region,
    graph_pool,
    request_bucket,
    reset_graph_pool,
    token_graph,
)
from atom_impl.utils.step_ledger import CopyKind, StepRecord

WIDTH = 16


@pytest.fixture(autouse=True)
def _clean_pool() -> Iterator[None]:
    with torch.inference_mode():
        yield
    reset_graph_pool()


@pytest.fixture
def dev(device: str) -> torch.device:
    return get_device(device).torch_device


class Step:
    """A live step: `scale` is host metadata that a region reads, `record` what the ledger saw."""

    def __init__(self, rows: int, dev: torch.device, *, scale: float = 2.0, prefill: bool = False) -> None:
        self.record = StepRecord()
        self.metadata: dict[str, Any] = {"scale": scale, "max_seqlen_q": 1}
        self.context = Context(torch.zeros(rows, device=dev), is_prefill=prefill, batch_size=rows, running_bs=rows)

    def __call__(self, action: Any = None) -> AbstractContextManager[ForwardContext]:
        return forward_context(self.metadata, Config(), self.context, tr_graph=action, record=self.record)


@eager_region
def scaled(x: torch.Tensor) -> torch.Tensor:
    metadata: Any = get_forward_context().attn_metadata
    return x * metadata["scale"]


def run(graph: TokenGraph, function: Callable[..., Any], x: torch.Tensor, step: Step, action: str) -> Any:
    with step(None):
        graph.learn(function(x))
    with step(action):
        if action == "record":
            return graph.record(function, x, phase="decode")
        return graph.replay(x, phase="decode")


def recorded(function: Callable[..., Any], x: torch.Tensor, dev: torch.device) -> TokenGraph:
    graph = TokenGraph("unit", device=get_device(dev.type))
    run(graph, function, x, Step(x.shape[0], dev), "record")
    return graph


def test_a_region_reads_the_live_step_and_not_the_recorded_one(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return scaled(x + 1) - 3

    graph = recorded(forward, x, dev)
    for scale in (5.0, -1.0):
        x.normal_()
        out = run(graph, forward, x, Step(4, dev, scale=scale), "replay")
        assert torch.equal(out, (x + 1) * scale - 3)


def test_a_recording_returns_real_data_because_each_segment_runs_before_its_region(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    seen: list[torch.Tensor] = []

    @eager_region
    def look(t: torch.Tensor) -> torch.Tensor:
        seen.append(t.clone())
        return t * 2

    graph = TokenGraph(device=get_device(dev.type))
    out = run(graph, lambda t: look(t + 1) + 1, x, Step(4, dev), "record")
    assert torch.equal(seen[-1], x + 1)
    assert torch.equal(out, (x + 1) * 2 + 1)


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor | None


@pytest.mark.parametrize(
    ("kind", "make", "read"),
    [
        ("tensor", lambda t: t * 2, lambda r: r),
        ("tuple with None", lambda t: (t * 2, None), lambda r: r[0]),
        ("dict", lambda t: {"a": t * 2, "b": t + 1}, lambda r: r["a"] + r["b"]),
        ("nested list", lambda t: [t * 2, [t - 1]], lambda r: r[0] - r[1][0]),
        ("dataclass", lambda t: Pair(t * 2, None), lambda r: r.left),
        ("non-contiguous", lambda t: (t * 2).t().contiguous().t(), lambda r: r),
        ("expanded", lambda t: t[:, :1].expand(t.shape[0], WIDTH), lambda r: r),
        ("alias of its argument", lambda t: t, lambda r: r),
        ("view of its argument", lambda t: t[:, : WIDTH // 2], lambda r: r),
    ],
)
def test_every_kind_of_region_result_lands_where_the_next_segment_reads(
    kind: str, make: Callable[..., Any], read: Callable[..., Any], dev: torch.device
) -> None:
    region = eager_region(make)
    x = torch.randn(4, WIDTH, device=dev)

    def forward(t: torch.Tensor) -> torch.Tensor:
        return read(region(t + 1)) * 3

    graph = recorded(forward, x, dev)
    for _ in range(3):
        x.normal_()
        ballast = torch.full((997,), float("nan"), device=dev)
        assert torch.equal(run(graph, forward, x, Step(4, dev), "replay"), read(make(x + 1)) * 3), kind
        del ballast


def test_adjacent_regions_hand_over_without_a_segment_between(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)

    def forward(t: torch.Tensor) -> torch.Tensor:
        return scaled(scaled(t))

    graph = recorded(forward, x, dev)
    (recording,) = graph.recordings().values()
    assert recording.regions == 2
    assert recording.segments == 1  # only the copy out of the pool
    x.normal_()
    assert torch.equal(run(graph, forward, x, Step(4, dev, scale=3.0), "replay"), x * 3 * 3)


def test_a_region_in_a_region_runs_inline(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    outer = eager_region(lambda t: scaled(t) + 1)
    graph = recorded(lambda t: outer(t * 1.0), x, dev)
    (recording,) = graph.recordings().values()
    assert recording.regions == 1
    assert torch.equal(run(graph, lambda t: outer(t * 1.0), x, Step(4, dev, scale=7.0), "replay"), x * 7 + 1)


def test_buckets_share_the_pool_and_stay_right_in_any_order(dev: torch.device) -> None:
    weight = torch.randn(WIDTH, WIDTH, device=dev)

    def forward(t: torch.Tensor) -> torch.Tensor:
        return (scaled(t @ weight) @ weight).softmax(-1)

    for order in ([8, 4, 2, 1], [1, 2, 4, 8]):
        x = torch.randn(8, WIDTH, device=dev)
        graph = TokenGraph(device=get_device(dev.type))
        with Step(8, dev)():
            graph.learn(forward(x))
        for rows in order:
            run(graph, forward, x[:rows], Step(rows, dev), "record")
        for rows in (8, 4, 8, 1, 2, 8, 4):
            x.normal_()
            step = Step(rows, dev, scale=float(rows))
            out = run(graph, forward, x[:rows], step, "replay").clone()
            with step():
                assert torch.equal(out, forward(x[:rows]))
        graph.clear()


def test_the_pool_costs_what_the_largest_bucket_costs(dev: torch.device) -> None:
    device = get_device(dev.type)
    width = 1 << 16 if dev.type == "cpu" else 1 << 21

    def forward(t: torch.Tensor) -> torch.Tensor:
        return scaled(t * 2) * 3 + 1

    def cost(order: list[int]) -> int:
        reset_graph_pool()
        x = torch.zeros(8, width, device=dev)
        graph = TokenGraph(device=device)
        with Step(8, dev)():
            graph.learn(forward(x))
        for rows in order:
            run(graph, forward, x[:rows], Step(rows, dev), "record")
        return device.pool_bytes(graph_pool(device))

    alone = cost([8])
    assert alone > 0
    assert cost([8, 4, 2, 1]) <= 1.15 * alone


def test_an_argument_at_another_address_is_copied_in_and_counted(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    graph = recorded(lambda t: t + 1, x, dev)
    elsewhere = torch.randn(4, WIDTH, device=dev)
    step = Step(4, dev)
    with step("replay"):
        out = graph.replay(elsewhere, phase="decode")
    assert torch.equal(out, elsewhere + 1)
    assert step.record.copies[CopyKind.COPY_IN].bytes == elsewhere.nbytes


def test_fewer_rows_than_the_bucket_get_a_zero_tail_that_is_counted(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    graph = recorded(lambda t: t + 1, x, dev)
    step = Step(3, dev)
    with step("replay"):
        out = graph.replay(torch.ones(3, WIDTH, device=dev), phase="decode")
    assert torch.equal(out[3], torch.ones(WIDTH, device=dev))
    assert step.record.copies[CopyKind.PADDING].count == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.double(), "recorded as a tensor"),
        (lambda x: x[:, : WIDTH // 2].contiguous(), "recorded as a tensor"),
        (lambda x: None, "agree on their rows"),
    ],
)
def test_an_argument_of_another_kind_is_refused_by_name(
    change: Callable[..., Any], message: str, dev: torch.device
) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    graph = recorded(lambda t: t + 1, x, dev)
    with Step(4, dev)("replay"), pytest.raises(ReplayError, match=message):
        graph.replay(change(x), phase="decode")


def test_a_changed_scalar_or_none_pattern_is_refused(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    graph = TokenGraph(device=get_device(dev.type))
    with Step(4, dev)():
        graph.learn(x)
    with Step(4, dev)("record"):
        graph.record(lambda t, factor, other: t * factor, x, 2.0, None, phase="decode")
    with Step(4, dev)("replay"):
        with pytest.raises(ReplayError, match=r"recorded as 2\.0 and is 3\.0"):
            graph.replay(x, 3.0, None, phase="decode")
        with pytest.raises(ReplayError, match="recorded as None"):
            graph.replay(x, 2.0, x, phase="decode")


def test_metadata_that_moved_is_named_down_to_its_leaf(dev: torch.device) -> None:
    lens = torch.ones(4, device=dev)
    x = torch.randn(4, WIDTH, device=dev)
    step = Step(4, dev)
    step.metadata["inner"] = {"lens": [lens]}
    graph = TokenGraph(device=get_device(dev.type))
    run(graph, lambda t: t + 1, x, step, "record")
    step.metadata["inner"] = {"lens": [lens.clone()]}
    with step("replay"), pytest.raises(ReplayError, match=r"attn_metadata\['inner'\]\['lens'\]\[0\] moved"):
        graph.replay(x, phase="decode")


def test_a_region_that_changes_its_result_is_refused_by_name(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    wide = {"columns": WIDTH}
    cut = eager_region(lambda t: t[:, : wide["columns"]] * 1.0)
    graph = recorded(lambda t: cut(t + 1) * 2, x, dev)
    wide["columns"] = 3
    with Step(4, dev)("replay"), pytest.raises(ReplayError, match=r"region .* recorded a tensor \(4, 16\)"):
        graph.replay(x, phase="decode")


class Unit(nn.Module):
    def __init__(self, dev: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, device=dev), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(x @ self.weight) + 1


def test_each_instance_has_its_own_recordings_and_phases_are_counted_as_asked(dev: torch.device) -> None:
    unit_class = token_graph(type("Marked", (Unit,), {}))
    first, second = unit_class(dev), unit_class(dev)
    x = torch.randn(4, WIDTH, device=dev)
    for action in (None, "record"):
        with Step(4, dev)(action):
            first(x)
    assert first.token_graph.captured_sizes("decode") == [4]
    assert first.token_graph.captured_sizes("prefill") == []
    assert second.token_graph.captured_sizes("decode") == []
    with Step(4, dev, prefill=True)("record"):
        out = first(x)
    assert torch.equal(out, (x @ first.weight) * 2 + 1)
    assert first.token_graph.captured_sizes("prefill") == [4]
    assert len(first.token_graph.recordings()) == 1
    with pytest.raises(ValueError, match="'prefill' or 'decode'"):
        first.token_graph.captured_sizes("mixed")


def test_a_unit_per_phase_is_recorded_once_per_phase(dev: torch.device) -> None:
    unit = token_graph(per_phase=True)(type("PerPhase", (Unit,), {}))(dev)
    x = torch.randn(4, WIDTH, device=dev)
    for prefill in (False, True):
        for action in (None, "record"):
            with Step(4, dev, prefill=prefill)(action):
                unit(x)
    assert len(unit.token_graph.recordings()) == 2


def test_weights_swapped_after_the_recording_are_named_at_the_first_replay(dev: torch.device) -> None:
    unit = token_graph(type("Swapped", (Unit,), {}))(dev)
    x = torch.randn(4, WIDTH, device=dev)
    for action in (None, "record"):
        with Step(4, dev)(action):
            unit(x)
    kept = unit.weight.data
    unit.weight.data = torch.randn(WIDTH, WIDTH, device=dev)
    with Step(4, dev)("replay"), pytest.raises((ReplayError, RuntimeError), match="moved"):
        unit(x)
    assert kept is not None


def test_a_request_graph_records_regions_inline_and_is_keyed_by_its_bucket(dev: torch.device) -> None:
    x, out = torch.randn(4, WIDTH, device=dev), torch.zeros(4, WIDTH, device=dev)
    graph = ReqGraph(get_device(dev.type))

    def forward() -> None:
        out.copy_(scaled(x))

    with Step(4, dev, scale=2.0)():
        key = graph.record(forward)
    assert key == request_bucket(4, 1) == (4, 0)
    (recording,) = graph.recordings().values()
    assert (recording.segments, recording.regions) == (1, 0)
    x.normal_()
    with Step(4, dev, scale=5.0)():
        graph.replay(key)
    assert torch.equal(out, x * 2.0)  # the host value froze, which is why such a launch must be a region
    with Step(4, dev)(), pytest.raises(MissingRecordingError, match=r"no request graph for \(8, 0\)"):
        graph.replay((8, 0))


def test_a_request_graph_may_not_return_a_tensor_of_the_pool(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    with Step(4, dev)(), pytest.raises(CaptureError, match="write it to a staging buffer"):
        ReqGraph(get_device(dev.type)).record(lambda: x + 1)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("where", ["segment", "region"])
def test_a_failed_recording_leaves_nothing_replayable_and_the_next_one_works(where: str, dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    broken = {"now": True}

    @eager_region
    def region(t: torch.Tensor) -> torch.Tensor:
        if where == "region" and broken["now"]:
            raise ArithmeticError("in the region")
        return t * 2

    def forward(t: torch.Tensor) -> torch.Tensor:
        t = region(t + 1)
        if where == "segment" and broken["now"]:
            raise ArithmeticError("in the segment")
        return t - 1

    graph = TokenGraph(device=get_device(dev.type))
    broken["now"] = False
    with Step(4, dev)():
        graph.learn(forward(x))
    broken["now"] = True
    with Step(4, dev)("record"), pytest.raises(ArithmeticError):
        graph.record(forward, x, phase="decode")
    assert current_session() is None
    assert graph.captured_sizes("decode") == []
    with Step(4, dev)("replay"), pytest.raises(MissingRecordingError):
        graph.replay(x, phase="decode")
    broken["now"] = False
    out = run(graph, forward, x, Step(4, dev), "record")
    assert torch.equal(out, (x + 1) * 2 - 1)


def test_capture_changes_no_byte_outside(dev: torch.device) -> None:
    x, cache = torch.randn(4, WIDTH, device=dev), torch.zeros(4, WIDTH, device=dev)

    def forward(t: torch.Tensor) -> torch.Tensor:
        cache.add_(t)  # twice what one run adds, if the capture itself had an effect
        return scaled(t) + 1

    graph = TokenGraph(device=get_device(dev.type))
    with Step(4, dev)():
        graph.learn(forward(x))
    cache.zero_()
    with Step(4, dev)("record"):
        graph.record(forward, x, phase="decode")
    assert torch.equal(cache, x)


def test_nothing_is_recorded_once_capture_has_closed(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    graph = recorded(lambda t: t + 1, x, dev)
    graph.closed = True
    with Step(4, dev)("record"), pytest.raises(CaptureError, match="capture closed"):
        graph.record(lambda t: t + 1, x, phase="decode")


def test_a_recording_within_a_recording_is_refused(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    inner, outer = TokenGraph(device=get_device(dev.type)), TokenGraph(device=get_device(dev.type))

    def forward(t: torch.Tensor) -> torch.Tensor:
        inner.learn(t)
        return inner.record(lambda u: u + 1, t, phase="decode") if current_session() else t + 1

    with Step(4, dev)():
        outer.learn(forward(x))
    with Step(4, dev)("record"), pytest.raises(CaptureError, match="already in progress"):
        outer.record(forward, x, phase="decode")


def test_outputs_live_outside_the_pool_and_keep_their_address(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    device = get_device(dev.type)
    graph = recorded(lambda t: t + 1, x, dev)
    with Step(4, dev)("replay"):
        first = graph.replay(x, phase="decode")
        second = graph.replay(x, phase="decode")
    assert first.data_ptr() == second.data_ptr()
    assert not device.owns(graph_pool(device), first)
