"""Compiled code is recorded kernel by kernel, and a region may break it in the middle.

Recorded as one call, a compiled artefact runs its Python wrapper at every replay, allocates afresh and hides its
regions. Compiled inside a capture, it once gave an empty recording and no error at all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from atom_impl.device.software import CaptureError, Pool, SoftwareDevice, SoftwareGraph, register_body

pytestmark = pytest.mark.usefixtures("inference")

WIDTH = 32
_ops = torch.library.Library("software_graph_inductor", "FRAGMENT")
_ops.define("attend(Tensor x, Tensor(a!) cache, str layer) -> Tensor")
_live = {"scale": 2.0}


def _attend(x: torch.Tensor, cache: torch.Tensor, layer: str) -> torch.Tensor:
    return _region(lambda: _attend_eagerly(x, cache, layer))


def _attend_eagerly(x: torch.Tensor, cache: torch.Tensor, layer: str) -> torch.Tensor:
    cache[: x.shape[0]] = x
    if _recording is not None:
        assert cache.sum().item() == cache.sum().item()  # a region may read device data
    return x * _live["scale"] + len(layer)


_ops.impl("attend", _attend, "CPU")
_ops.impl("attend", lambda x, cache, layer: torch.empty_like(x), "Meta")
register_body(torch.ops.software_graph_inductor.attend.default, _attend)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("cache", torch.zeros(16, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x).relu() * 1.5
        x = torch.ops.software_graph_inductor.attend(x + self.down(hidden), self.cache, "layer") - 1
        return x.softmax(-1) + x


@dataclass
class Recording:
    """Segments and regions in order, as a token graph keeps them."""

    device: SoftwareDevice
    pool: Pool
    steps: list[SoftwareGraph | Callable[[], object]] = field(default_factory=list)

    def begin(self) -> None:
        self.segment = self.device.graph()
        self.segment.capture_begin(pool=self.pool)

    def end(self) -> None:
        self.segment.capture_end()
        self.segment.replay()
        self.steps.append(self.segment)

    def replay(self) -> None:
        for step in self.steps:
            step.replay() if isinstance(step, SoftwareGraph) else step()


_recording: Recording | None = None


def _region(body: Callable[[], torch.Tensor]) -> torch.Tensor:
    recording = _recording
    if recording is None:
        return body()
    recording.end()
    result = body()
    with recording.device.allocating(recording.pool):
        handed = torch.empty_like(result)
    handed.copy_(result)
    target = recording.device.alias(handed)
    recording.steps.append(lambda: target.copy_(body()))
    recording.begin()
    return handed


@contextmanager
def _recorded(device: SoftwareDevice, pool: Pool) -> Iterator[Recording]:
    global _recording
    _recording = Recording(device, pool)
    try:
        with device.recording():
            _recording.begin()
            yield _recording
            _recording.end()
    finally:
        _recording = None


Models = tuple[nn.Sequential, Callable[..., torch.Tensor]]


@pytest.fixture(scope="module")
def models() -> Models:
    torch.manual_seed(1)
    model = nn.Sequential(Block(), Block()).eval().requires_grad_(False)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.inference_mode():
        compiled(torch.randn(8, WIDTH))
    return model, compiled


def test_a_compiled_artefact_is_recorded_kernel_by_kernel(
    models: Models,
) -> None:
    _, compiled = models
    x, out, graph = torch.randn(8, WIDTH), torch.zeros(8, WIDTH), SoftwareGraph()
    graph.capture_begin()
    out.copy_(compiled(x))
    graph.capture_end()
    assert any(name.startswith("cpp_fused") for name in graph.census())
    assert not any(name.startswith("software_graph_inductor") for name in graph.census())  # its body was entered
    assert not out.any()
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert torch.equal(out, compiled(x))


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("order", [(8, 4, 2), (2, 4, 8)])
def test_a_region_breaks_the_recording_in_mid_dispatch(models: Models, level: int, order: tuple[int, ...]) -> None:
    model, compiled = models
    run = compiled if level == 2 else model
    device = SoftwareDevice()
    pool, x = device.new_pool(), torch.randn(8, WIDTH)
    recordings, outs = {}, {rows: torch.zeros(rows, WIDTH) for rows in order}
    _live["scale"] = 2.0
    for rows in order:
        run(x[:rows])
        with _recorded(device, pool) as recording:
            outs[rows].copy_(run(x[:rows]))
        recordings[rows] = recording
        assert [isinstance(step, SoftwareGraph) for step in recording.steps] == [True, False, True, False, True]
        assert torch.equal(outs[rows], run(x[:rows]))
    for step in range(12):
        rows = order[step % 3]
        _live["scale"] = 1.0 + step  # the region reads the live step
        x.normal_()
        outs[rows].fill_(float("nan"))
        recordings[rows].replay()
        replayed = [cache.clone() for cache in model.buffers()]
        for cache in model.buffers():
            cache.zero_()
        assert torch.equal(outs[rows], run(x[:rows]))
        for cache, value in zip(model.buffers(), replayed, strict=True):
            assert torch.equal(cache[:rows], value[:rows])


def test_generated_code_is_put_back_when_the_session_closes(
    models: Models,
) -> None:
    cache = importlib.import_module("torch._inductor.codecache").PyCodeCache
    before = [dict(vars(module)) for module in cache.modules]
    load = vars(cache)["load_by_key_path"]
    with SoftwareDevice().recording():
        graph = SoftwareGraph()
        graph.capture_begin()
        assert [dict(vars(module)) for module in cache.modules] != before
        graph.capture_end()
    assert [dict(vars(module)) for module in cache.modules] == before
    assert vars(cache)["load_by_key_path"] is load


@pytest.mark.parametrize("backend", ["inductor", "eager"])
def test_a_first_compile_inside_a_capture_is_refused_with_its_place(backend: str) -> None:
    fresh = torch.compile(lambda x: (x * 3).cos(), backend=backend)
    x, graph = torch.randn(4), SoftwareGraph()
    graph.capture_begin()
    with pytest.raises(CaptureError, match=r"torch.compile compiles while capturing, at .*test_inductor.py"):
        fresh(x)
    graph.abort()
    assert torch.equal(fresh(x), (x * 3).cos()) or backend == "inductor"
    graph.reset()
    graph.capture_begin()
    y = fresh(x)
    graph.capture_end()
    graph.replay()
    assert torch.equal(y, fresh(x))


def test_code_that_is_loaded_inside_a_capture_is_refused(models: Models) -> None:
    cache = importlib.import_module("torch._inductor.codecache").PyCodeCache
    graph = SoftwareGraph()
    graph.capture_begin()
    with pytest.raises(CaptureError, match=r"generated code is loaded while capturing, at .*test_inductor.py"):
        cache.load("x = 1\n")
    graph.abort()
    assert cache.load("x = 1\n").x == 1


def test_an_input_that_a_kernel_writes_is_given_back(models: Models) -> None:
    def bump(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    compiled = torch.compile(bump)
    x = torch.zeros(16)
    compiled(x.clone())
    graph = SoftwareGraph()
    graph.capture_begin()
    y = compiled(x)
    graph.capture_end()
    assert not x.any()
    for count in (1, 2):
        graph.replay()
        assert x.eq(count).all()
        assert y.eq(2 * count).all()
