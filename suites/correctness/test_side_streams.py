"""A side stream is forked and joined within one segment; a region cannot run while it is out.

A capture that ends with work on another stream is refused by the runtime, with an error that names neither the stream
nor the place. Joined work, on any device, gives what a plain run gives.
"""

from __future__ import annotations

import pytest
import torch

from atom_impl.config import Config
from atom_impl.device import CaptureError, Device, get_device
from atom_impl.device.cuda_streams import explain
from atom_impl.device.debug import DebugDevice
from atom_impl.utils.forward_context import Context, forward_context
from atom_impl.utils.region_graph import TokenGraph, eager_region

pytestmark = pytest.mark.usefixtures("inference", "clean_pool")

ROWS, WIDTH = 4, 64


@pytest.fixture
def dev(device: str) -> Device:
    return get_device(device)


class Unit:
    """Scores on a side stream, a region in the middle. `late`: the join comes after the region."""

    def __init__(self, device: Device, late: bool = False) -> None:
        self.device, self.late = device, late
        self.side = device.side_stream("indexer")
        self.weight = torch.randn(WIDTH, WIDTH, device=device.torch_device)
        self.region = eager_region(lambda hidden: hidden * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x @ self.weight
        self.side.fork()
        with self.side:
            scores = (hidden @ self.weight).softmax(-1)
        hidden = hidden + 1
        if not self.late:
            self.side.join()
        hidden = self.region(hidden)
        if self.late:
            self.side.join()
        return hidden * scores


def record(graph: TokenGraph, unit: Unit, x: torch.Tensor) -> torch.Tensor:
    context = Context(x, batch_size=ROWS, running_bs=ROWS)
    with forward_context({}, Config(), context), unit.device.warming_up():
        graph.learn(unit.forward(x))
    with forward_context({}, Config(), context, tr_graph="record"):
        return graph.record(unit.forward, x, phase="decode")


def check(graph: TokenGraph, unit: Unit, x: torch.Tensor) -> None:
    for _ in range(3):
        x.normal_()
        with forward_context({}, Config(), Context(x, batch_size=ROWS, running_bs=ROWS), tr_graph="replay"):
            out = graph.replay(x, phase="decode").clone()
        assert torch.equal(out, unit.forward(x))


@pytest.mark.parametrize("debug", [False, True])
def test_work_beside_the_main_stream_replays_as_a_plain_run(debug: bool, dev: Device) -> None:
    device = DebugDevice(dev) if debug else dev
    unit, graph, x = Unit(device), TokenGraph(device=device), torch.randn(ROWS, WIDTH, device=dev.torch_device)
    record(graph, unit, x)
    check(graph, unit, x)


def test_a_region_that_comes_before_the_join_is_refused_and_the_next_recording_works(dev: Device) -> None:
    unit, graph, x = Unit(dev, late=True), TokenGraph(device=dev), torch.randn(ROWS, WIDTH, device=dev.torch_device)
    with pytest.raises(CaptureError, match=r"'indexer', forked at .*test_side_streams.py:\d+ in forward, .* a region"):
        record(graph, unit, x)
    assert graph.captured_sizes("decode") == []
    unit.late = False
    record(graph, unit, x)
    check(graph, unit, x)


def test_the_runtimes_own_error_is_told_in_the_same_words_and_others_are_left_alone() -> None:
    unjoined = RuntimeError("CUDA error: capturing stream has unjoined work")
    other = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert "that nobody waited for) is not joined when its segment ends" in str(explain(unjoined))
    assert explain(other) is other


def test_work_for_a_stream_that_was_not_forked_is_refused(dev: Device) -> None:
    x, side, pool = torch.randn(ROWS, WIDTH, device=dev.torch_device), dev.side_stream("indexer"), dev.new_pool()
    with dev.recording():
        graph = dev.graph()
        graph.capture_begin(pool=pool)
        with pytest.raises(CaptureError, match=r"call fork\(\) first"), side:
            x.mul_(2)
        dev.abort(graph)
