"""The faults that graphs make of correct eager code, planted one by one, each with its harmless twin.

Every one of these has shipped somewhere with all functional tests green: an eager result that nobody kept, a weight
that was rebound, a counter cleared outside the graph, a host integer frozen at capture.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from atom_impl.device.software import CaptureError, SoftwareDevice, SoftwareGraph, launch, recording, register_body

pytestmark = pytest.mark.usefixtures("inference")

ROWS, WIDTH = 4, 8
_ops = torch.library.Library("planted_faults", "FRAGMENT")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH)


@pytest.fixture
def out() -> torch.Tensor:
    return torch.zeros(ROWS, WIDTH)


@pytest.fixture
def device() -> SoftwareDevice:
    return SoftwareDevice()


def captured(fn: Callable[[], object]) -> SoftwareGraph:
    graph = SoftwareGraph()
    graph.capture_begin()
    try:
        fn()
    except BaseException:
        graph.abort()
        raise
    graph.capture_end()
    return graph


def _around_a_region(
    device: SoftwareDevice, x: torch.Tensor, out: torch.Tensor, own: Callable[[object, torch.Tensor], torch.Tensor]
) -> tuple[list[SoftwareGraph], torch.Tensor, torch.Tensor]:
    """Two graphs around an eager `+ 1`; `own` decides how its result is kept. Returns graphs, region input, result."""
    pool = device.new_pool()
    first, second = SoftwareGraph(), SoftwareGraph()
    with device.recording():
        first.capture_begin(pool)
        doubled = x * 2
        first.capture_end()
        first.replay()
        handed = own(pool, doubled + 1)
        second.capture_begin(pool)
        scratch = handed.clone()
        out.copy_(scratch - 3)
        second.capture_end()
        held, result = device.alias(doubled), device.alias(handed) if device.owns(pool, handed) else handed
    return [first, second], held, result


def test_an_eager_result_that_nobody_keeps_is_named_at_the_first_replay(
    device: SoftwareDevice, x: torch.Tensor, out: torch.Tensor
) -> None:
    graphs, _, result = _around_a_region(device, x, out, lambda pool, t: t)
    del result
    graphs[0].replay()
    with pytest.raises(RuntimeError, match=r"outside tensor \[4, 8\] float32 of aten::clone .*freed or replaced"):
        graphs[1].replay()


def test_an_eager_result_that_is_kept_replays(device: SoftwareDevice, x: torch.Tensor, out: torch.Tensor) -> None:
    graphs, held, result = _around_a_region(device, x, out, lambda pool, t: t)
    x.normal_()
    graphs[0].replay()
    result.copy_(held + 1)
    graphs[1].replay()
    assert torch.equal(out, x * 2 + 1 - 3)


def _in_the_pool(device: SoftwareDevice, pool: object, value: torch.Tensor, *, keep: bool) -> torch.Tensor:
    with device.allocating(pool):
        buffer = torch.empty_like(value)
    buffer.copy_(value)
    return buffer if keep else device.alias(buffer)


def test_a_hand_off_buffer_dropped_too_early_reads_nan(
    device: SoftwareDevice, x: torch.Tensor, out: torch.Tensor
) -> None:
    graphs, held, result = _around_a_region(device, x, out, lambda pool, t: _in_the_pool(device, pool, t, keep=False))
    graphs[0].replay()
    result.copy_(held + 1)
    graphs[1].replay()
    assert out.isnan().all()


def test_a_hand_off_buffer_kept_through_the_session_replays(
    device: SoftwareDevice, x: torch.Tensor, out: torch.Tensor
) -> None:
    graphs, held, result = _around_a_region(device, x, out, lambda pool, t: _in_the_pool(device, pool, t, keep=True))
    x.normal_()
    graphs[0].replay()
    result.copy_(held + 1)
    graphs[1].replay()
    assert torch.equal(out, x * 2 + 1 - 3)


def test_an_output_held_across_another_replay_in_the_pool_changes_under_its_holder(
    device: SoftwareDevice, x: torch.Tensor
) -> None:
    pool = device.new_pool()
    graphs, outputs = [], []
    with device.recording():
        for factor in (2, 5):
            graph = SoftwareGraph()
            graph.capture_begin(pool)
            result = x * factor
            graph.capture_end()
            graphs.append(graph)
            outputs.append(device.alias(result))
            del result
    graphs[0].replay()
    copied = outputs[0].clone()
    graphs[1].replay()
    assert torch.equal(copied, x * 2)
    assert torch.equal(outputs[0], x * 5)


def test_a_write_behind_the_log_is_lost(x: torch.Tensor, out: torch.Tensor) -> None:
    def write_with_the_host() -> None:
        t = x + 0
        ctypes.memset(t.data_ptr(), 0, t.nbytes)
        out.copy_(t + 1)

    graph = captured(write_with_the_host)
    graph.replay()
    assert torch.equal(out, x + 1)


def test_a_counter_cleared_outside_the_graph_is_wrong_from_the_second_replay(
    x: torch.Tensor, out: torch.Tensor
) -> None:
    arrivals = torch.zeros(1)

    def reduce(rearm: bool) -> None:
        arrivals.add_(1)
        out.copy_(x * (arrivals == 1))
        if rearm:
            arrivals.zero_()

    graph = captured(lambda: reduce(rearm=False))
    graph.replay()
    assert torch.equal(out, x)
    graph.replay()
    assert not torch.equal(out, x)
    arrivals.zero_()
    rearmed = captured(lambda: reduce(rearm=True))
    for _ in range(3):
        rearmed.replay()
        assert torch.equal(out, x)


def test_a_weight_rebound_after_the_capture_is_named(x: torch.Tensor, out: torch.Tensor) -> None:
    weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)
    graph = captured(lambda: out.copy_(x @ weight))
    weight.data = torch.randn(WIDTH, WIDTH)
    with pytest.raises(RuntimeError, match=r"outside tensor \[8, 8\] float32 of aten::matmul .*freed or replaced"):
        graph.replay()


def test_a_weight_updated_in_place_is_seen(x: torch.Tensor, out: torch.Tensor) -> None:
    weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)
    graph = captured(lambda: out.copy_(x @ weight))
    weight.normal_()
    graph.replay()
    assert torch.equal(out, x @ weight)


def test_a_storage_that_moved_is_named(x: torch.Tensor, out: torch.Tensor) -> None:
    cache = torch.zeros(ROWS, WIDTH)
    graph = captured(lambda: out.copy_(x + cache))
    cache.untyped_storage().resize_(1 << 20)
    with pytest.raises(RuntimeError, match=r"aten::add .*moved since the capture"):
        graph.replay()


def test_two_graphs_that_share_a_freed_tensor_both_say_so(x: torch.Tensor, out: torch.Tensor) -> None:
    freed = {"bias": torch.randn(WIDTH)}
    graphs = [captured(lambda: out.copy_(x + freed["bias"])) for _ in range(2)]
    freed.clear()
    for graph in graphs:
        with pytest.raises(RuntimeError, match=r"outside tensor \[8\] .*freed or replaced"):
            graph.replay()


def test_a_tensor_freed_after_a_replay_within_the_session_is_still_found(x: torch.Tensor, out: torch.Tensor) -> None:
    graph, bias = SoftwareGraph(), torch.randn(WIDTH)
    with recording():
        graph.capture_begin()
        out.copy_(x + bias)
        graph.capture_end()
        graph.replay()
    del bias
    with pytest.raises(RuntimeError, match="freed or replaced"):
        graph.replay()


def test_a_host_integer_stays_what_it_was_and_the_entries_show_it(x: torch.Tensor, out: torch.Tensor) -> None:
    _ops.define("partial(Tensor x, int splits) -> Tensor")
    _ops.impl("partial", lambda x, splits: x[:, : splits * 2].sum(-1), "CPU")
    register_body(torch.ops.planted_faults.partial.default, lambda x, splits: x[:, : splits * 2].sum(-1))
    lengths = {"now": 1}
    graph = captured(lambda: out[:, 0].copy_(torch.ops.planted_faults.partial(x, lengths["now"]) * lengths["now"]))
    lengths["now"] = 4
    graph.replay()
    assert torch.equal(out[:, 0], x[:, :2].sum(-1))
    assert [(op.name, op.scalars) for op in graph.entries() if op.name == "aten::mul"] == [("aten::mul", (("1", 1),))]


def test_a_python_operator_without_a_registered_body_is_refused(x: torch.Tensor) -> None:
    _ops.define("unknown(Tensor x) -> Tensor")
    _ops.impl("unknown", lambda x: x + 1, "CPU")
    with pytest.raises(CaptureError, match=r"unknown at .*register_body\(torch.ops.planted_faults.unknown.default"):
        captured(lambda: torch.ops.planted_faults.unknown(x))


def test_a_replay_calls_no_forward_and_no_operator_body(x: torch.Tensor, out: torch.Tensor) -> None:
    armed = {"on": False}

    def body(x: torch.Tensor) -> torch.Tensor:
        assert not armed["on"], "the replay entered an operator's body"
        return x.relu() + 1

    @torch.library.custom_op("planted_faults::modern", mutates_args=())
    def modern(x: torch.Tensor) -> torch.Tensor:
        return body(x)

    _ops.define("classic(Tensor x) -> Tensor")
    _ops.impl("classic", body, "CPU")
    register_body(torch.ops.planted_faults.classic.default, body)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not armed["on"], "the replay entered a forward"
            return modern(x) * torch.ops.planted_faults.classic(x)

    model = Model()
    graph = captured(lambda: out.copy_(model(x)))
    armed["on"] = True
    x.normal_()
    graph.replay()
    assert torch.equal(out, (x.relu() + 1) ** 2)
    with pytest.raises(AssertionError, match="entered"):
        model(x)


def test_a_launch_that_allocates_something_else_is_named(x: torch.Tensor) -> None:
    rows = {"now": 2}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x[: rows["now"]] + 1

    graph = captured(lambda: (launch(kernel, x), x + x))
    graph.replay()
    rows["now"] = 3
    with pytest.raises(RuntimeError, match=r"replaying kernel\(\[4, 8\] float32\), .* wants 96 bytes where 64"):
        graph.replay()
    rows["now"] = 0
    with pytest.raises(RuntimeError, match=r"replaying kernel\(.*: it allocated less than was recorded"):
        graph.replay()


def test_a_foreign_kernel_is_one_entry_at_fixed_addresses(x: torch.Tensor, out: torch.Tensor) -> None:
    def copy_bytes(to: torch.Tensor, source: torch.Tensor, nbytes: int) -> None:
        ctypes.memmove(to.data_ptr(), source.data_ptr(), nbytes)

    count = {"bytes": x.nbytes}

    def forward() -> None:
        t = x * 2
        launch(copy_bytes, out, t, count["bytes"])

    graph = captured(forward)
    assert not out.any()
    count["bytes"] = 0
    x.normal_()
    graph.replay()
    assert torch.equal(out, x * 2)
    assert graph.node_count == 2


def test_an_output_that_the_replay_does_not_write_is_nan(x: torch.Tensor) -> None:
    kept: list[torch.Tensor] = []

    def forward() -> None:
        kept.append(torch.empty(ROWS, WIDTH))
        kept[0][:2] = x[:2]

    graph = captured(forward)
    kept[0].zero_()
    graph.replay()
    assert torch.equal(kept[0][:2], x[:2])
    assert kept[0][2:].isnan().all()
