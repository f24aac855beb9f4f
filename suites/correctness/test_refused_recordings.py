"""Half a recording that can be replayed, or one made while serving, gives wrong tokens long after its error."""

from __future__ import annotations

import pytest
import torch

from atom_impl.device import CaptureError, get_device
from atom_impl.utils.region_graph import MissingRecordingError, ReqGraph, TokenGraph, current_session, eager_region
from suites.correctness.region_steps import WIDTH, Step, recorded, run

pytestmark = pytest.mark.usefixtures("inference", "clean_pool")


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
