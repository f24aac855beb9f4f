"""Guards against the faults of region graphs: stale inputs, moved addresses, results that die before they are read.

Every test records on the CPU's software graph (or the GPU, with --device cuda), changes something, and compares a
replay with a plain run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from atom_impl.device import get_device
from atom_impl.utils.region_graph import (
    MissingRecordingError,
    ReplayError,
    ReqGraph,
    TokenGraph,
    eager_region,
    request_bucket,
)
from suites.correctness.region_steps import WIDTH, Step, recorded, run, scaled

pytestmark = pytest.mark.usefixtures("inference", "clean_pool")


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


def test_a_region_that_changes_its_result_is_refused_by_name(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    wide = {"columns": WIDTH}
    cut = eager_region(lambda t: t[:, : wide["columns"]] * 1.0)
    graph = recorded(lambda t: cut(t + 1) * 2, x, dev)
    wide["columns"] = 3
    with Step(4, dev)("replay"), pytest.raises(ReplayError, match=r"region .* recorded a tensor \(4, 16\)"):
        graph.replay(x, phase="decode")


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
