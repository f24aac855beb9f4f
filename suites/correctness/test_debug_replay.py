"""A debug replay tells a fault of the bookkeeping from a fault of the graphs; one that hides both tells nothing.

So it has to be right wherever graphs are right, stay wrong where an input or a hand-off is wrong, and come right where
only a recorded graph goes wrong.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.codecache import PyCodeCache

from atom_impl.config import CompilationConfig, Config, CUDAGraphMode
from atom_impl.device import CaptureError, Device, get_device
from atom_impl.device.debug import DebugDevice
from atom_impl.device.software import register_body
from atom_impl.device.software.script import Script
from atom_impl.model_engine import model_runner
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.utils import region_graph
from atom_impl.utils.forward_context import Context, forward_context, get_forward_context
from atom_impl.utils.region_graph import ReqGraph, TokenGraph, eager_region
from suites.correctness.replay_machine import run_machine
from suites.correctness.replay_plants import Plant, copy_handoffs_elsewhere, hold_handoffs_weakly, leave_the_tail

pytestmark = pytest.mark.usefixtures("inference", "clean_pool")

_ops = torch.library.Library("debug_replay", "FRAGMENT")


@pytest.fixture
def debug(device: str) -> DebugDevice:
    return DebugDevice(get_device(device))


def test_random_sequences_equal_the_plain_runs_bit_for_bit(debug: DebugDevice) -> None:
    run_machine(debug, examples=15)


@pytest.mark.parametrize("plant", [copy_handoffs_elsewhere, hold_handoffs_weakly, leave_the_tail])
def test_a_fault_of_the_bookkeeping_stays(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="off the plain run"):
        run_machine(DebugDevice(get_device("cpu")), examples=120)


def test_a_fault_of_the_graphs_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that drops the last node of a graph now and then is known from the field; here it always does."""
    original = Script.run

    def run(self: Any) -> None:
        calls, self._calls = self._calls, self._calls[:-1]
        original(self)
        self._calls = calls

    monkeypatch.setattr(Script, "run", run)
    with pytest.raises(AssertionError, match="off the plain run"):
        run_machine(get_device("cpu"), examples=120)
    run_machine(DebugDevice(get_device("cpu")), examples=15)


def _splits(x: torch.Tensor) -> torch.Tensor:
    return x * get_forward_context().attn_metadata["splits"]  # type: ignore[index]


_ops.define("splits(Tensor x) -> Tensor")
_ops.impl("splits", _splits, "CPU")
_ops.impl("splits", _splits, "CUDA")
register_body(torch.ops.debug_replay.splits.default, _splits)


def _replayed(device: Device, inside_the_operator: bool) -> float:
    """Record with splits 1, replay with splits 4: what a step of ones comes to."""
    x, out = torch.ones(2, 4, device=device.torch_device), torch.zeros(2, 4, device=device.torch_device)
    graph, context = ReqGraph(device), Context(x, batch_size=2, running_bs=2)
    metadata = {"splits": 1, "max_seqlen_q": 1}

    def forward() -> None:
        out.copy_(torch.ops.debug_replay.splits(x) if inside_the_operator else x * metadata["splits"])

    with forward_context(metadata, Config(), context), device.warming_up():
        forward()
    with forward_context(metadata, Config(), context):
        key = graph.record(forward)
    metadata["splits"] = 4
    with forward_context(metadata, Config(), context):
        graph.replay(key)
    return float(out[0, 0])


def test_a_host_value_comes_alive_in_an_operators_body_and_nowhere_else(device: str, debug: DebugDevice) -> None:
    assert [_replayed(get_device(device), inside) for inside in (True, False)] == [1.0, 1.0]
    assert [_replayed(debug, inside) for inside in (True, False)] == [4.0, 1.0]


def test_recording_changes_no_byte_outside(debug: DebugDevice) -> None:
    x = torch.randn(4, 8, device=debug.torch_device)
    cache = torch.zeros(4, 8, device=debug.torch_device)
    with debug.recording():
        graph = debug.graph()
        graph.capture_begin(pool=debug.new_pool())
        cache[1:3].add_(x[1:3])
        cache.mul_(2)
        graph.capture_end()
        assert not cache.any()
    assert debug.node_count(graph) == 2
    for _ in range(2):
        graph.replay()
    expected = torch.zeros_like(cache)
    expected[1:3] = (x[1:3] * 2 + x[1:3]) * 2
    assert torch.equal(cache, expected)
    graph.reset()
    with pytest.raises(RuntimeError, match="cannot replay"):
        graph.replay()


def test_a_read_on_the_host_is_refused_at_its_place(debug: DebugDevice) -> None:
    x = torch.ones(1, device=debug.torch_device)
    with debug.recording():
        graph = debug.graph()
        graph.capture_begin()
        with pytest.raises(CaptureError, match=r"at .*test_debug_replay.py:\d+ .* reads device data on the host"):
            x.item()
        debug.abort(graph)


def test_a_region_in_the_middle_of_an_operator_is_refused(debug: DebugDevice) -> None:
    region = eager_region(lambda x: x * 2)

    def body(x: torch.Tensor) -> torch.Tensor:
        return region(x + 1)

    _ops.define("half_a_region(Tensor x) -> Tensor")
    for key in ("CPU", "CUDA"):
        _ops.impl("half_a_region", body, key)
    register_body(torch.ops.debug_replay.half_a_region.default, body)
    x = torch.randn(4, 8, device=debug.torch_device)
    graph, context = TokenGraph(device=debug), Context(x, batch_size=4, running_bs=4)
    graph.learn(x)
    with (
        forward_context({}, Config(), context, tr_graph="record"),
        pytest.raises(
            CaptureError, match=r"half_a_region breaks the segment after 1 calls .*apply eager_region outermost"
        ),
    ):
        graph.record(torch.ops.debug_replay.half_a_region, x, phase="decode")


#: What Inductor writes for a GPU when artefacts are saved: the tuning block comes first, as a docstring, and names each
#: kernel as the code does.
_GENERATED = '''r"""
Compile-time auto-tuning block:
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', \\"\\"\\"...\\"\\"\\")
triton_poi_fused_add_0.run(buf0, 8, stream=stream0)
"""
async_compile = type("AsyncCompile", (), {"triton": staticmethod(lambda name, code: None)})()
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', "...")
'''


class _AddsOne:
    """A kernel that adds one to its argument, behind torch's back as kernels do: run twice, it shows."""

    fn = SimpleNamespace(arg_names=["in_out_ptr0", "xnumel", "XBLOCK"])

    def __init__(self, argument: torch.Tensor) -> None:
        self.memory = argument.numpy()

    def run(self, in_out_ptr0: torch.Tensor, xnumel: int, *, stream: int) -> None:
        self.memory[:xnumel] += 1


def _generated_module(folder: Path, kernel: _AddsOne) -> ModuleType:
    file = folder / "generated.py"
    file.write_text(_GENERATED)
    spec = spec_from_file_location("generated", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["triton_poi_fused_add_0"] = kernel
    return module


def test_a_kernel_that_its_file_names_twice_runs_once_a_replay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device, x = DebugDevice(get_device("cpu")), torch.zeros(8)
    module = _generated_module(tmp_path, _AddsOne(x))
    monkeypatch.setattr(PyCodeCache, "modules", [module])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    with device.recording():
        graph = device.graph()
        graph.capture_begin()
        module.triton_poi_fused_add_0.run(x, 8, stream=0)
        graph.capture_end()
    assert not x.any()
    assert device.node_count(graph) == 1
    graph.replay()
    assert x.eq(1).all()
    assert isinstance(module.triton_poi_fused_add_0, _AddsOne)


@pytest.mark.parametrize("mode", ["TR_HYBRID", "FULL"])
@pytest.mark.parametrize("level", [0, 3])
def test_a_runner_on_the_debug_device_serves_what_it_serves_eagerly(
    level: int, mode: str, model_name: str, debug: DebugDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (model_runner, region_graph):
        monkeypatch.setattr(module, "get_device", lambda *_: debug)
    source = resolve_model(model_name)
    config = Config(
        model=model_name,
        hf_config=source.config,
        compilation_config=CompilationConfig(
            level=level, cudagraph_mode=CUDAGraphMode[mode], cudagraph_capture_sizes=[1, 4]
        ),
        dtype=torch.float32,
        device=debug.type,
        max_num_seqs=4,
        max_model_len=32,
        max_num_batched_tokens=32,
        num_kvcache_blocks=16,
    )
    served = ModelRunner(config, load_model(config, source.weights(config.dtype, debug.torch_device)))
    served.capture_cudagraph()
    for requests in (4, 1, 3, 4):
        lengths = [3 + 2 * row for row in range(requests)]
        step = ScheduledBatch(
            False, [[7 + row] for row in range(requests)], lengths, [[row, 4 + row] for row in range(requests)]
        )
        replayed = served.step(step)
        logits = replayed.logits.clone()
        plain = served.step(step, graphs=False, rows=1 if requests == 1 else 4)
        assert replayed.record.effective_mode == mode
        assert replayed.record.segments > 0
        assert torch.equal(logits, plain.logits)
    served.close()
