"""A capture computes nothing and leaves nothing behind: not in memory, not in the generator, not in the process.

One failed capture that leaves a guard, a mode or a block in place turns up hours later, in code that records nothing.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from atom_impl.device.software import CaptureError, SoftwareDevice, SoftwareGraph, host, poisoning, recording

pytestmark = pytest.mark.usefixtures("inference")


@pytest.fixture
def device() -> SoftwareDevice:
    return SoftwareDevice()


def _process_state() -> tuple[object, ...]:
    guarded = ("item", "tolist", "__bool__", "__repr__", "numpy", "cpu")
    return (
        gc.isenabled(),
        len(gc.callbacks),
        len(_get_current_dispatch_mode_stack()),
        tuple(getattr(torch.Tensor, name) for name in guarded),
        torch.ops.aten._local_scalar_dense.default._schema.name,
        torch._C._dispatch_dump("aten::_local_scalar_dense").count("deny.py"),
    )


def test_a_capture_changes_no_byte_outside_or_in_the_pool(device: SoftwareDevice) -> None:
    x, out, cache = torch.randn(4, 8), torch.zeros(4, 8), torch.zeros(16, 8)
    pool = device.new_pool()
    with device.recording():
        first = device.graph()
        first.capture_begin(pool=pool)
        running = x * 2
        first.capture_end()
        first.replay()
        before = [t.clone() for t in (x, out, cache, running)]
        generator = torch.get_rng_state()
        second = device.graph()
        second.capture_begin(pool=pool)
        running.add_(1)
        cache[3:7].copy_(x)
        cache[5] += torch.rand(8)
        out.copy_(running)
        out[:2].normal_()
        second.capture_end()
        for tensor, value in zip((x, out, cache, running), before, strict=True):
            assert torch.equal(tensor, value)
        assert torch.equal(torch.get_rng_state(), generator)
        second.replay()
    assert torch.equal(running, before[3] + 1)
    assert torch.equal(out[2:], before[3][2:] + 1)


def test_a_registered_generator_is_restored_and_advances_with_each_replay() -> None:
    generator = torch.Generator().manual_seed(3)
    out, graph = torch.zeros(4), SoftwareGraph()
    graph.register_generator_state(generator)
    graph.capture_begin()
    out.copy_(torch.rand(4, generator=generator))
    graph.capture_end()
    expected = torch.Generator().manual_seed(3)
    for _ in range(2):
        graph.replay()
        assert torch.equal(out, torch.rand(4, generator=expected))


@pytest.mark.parametrize("fail_in", ["capture", "eager code"])
def test_an_exception_leaves_the_process_as_it_was(device: SoftwareDevice, fail_in: str) -> None:
    x, cache, before = torch.randn(4, 8), torch.zeros(4, 8), _process_state()
    pool = device.new_pool()
    graph = SoftwareGraph()

    def fail() -> None:
        with device.recording():
            graph.capture_begin(pool=pool)
            cache.copy_(x + 1)
            if fail_in == "eager code":
                graph.capture_end()
            raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        fail()
    assert _process_state() == before
    assert not cache.any()
    if fail_in == "capture":
        with pytest.raises(RuntimeError, match="cannot replay: it is aborted"):
            graph.replay()
    gc.collect()
    assert pool.used_bytes == 0
    again = SoftwareGraph()
    again.capture_begin(pool=pool)
    cache.copy_(x + 1)
    again.capture_end()
    again.replay()
    assert torch.equal(cache, x + 1)


def test_a_read_that_the_model_swallows_still_fails_the_capture() -> None:
    x, before = torch.randn(4), _process_state()
    graph = SoftwareGraph()
    graph.capture_begin()
    with contextlib.suppress(CaptureError):
        x.sum().item()
    with pytest.raises(CaptureError, match=r"the capture is invalid: Tensor.item .*test_capture.py"):
        graph.capture_end()
    assert _process_state() == before


def test_a_collection_by_hand_fails_the_capture() -> None:
    x, graph = torch.randn(4), SoftwareGraph()
    graph.capture_begin()
    x + 1
    gc.collect()
    with pytest.raises(CaptureError, match=r"garbage was collected while capturing, at .*test_capture.py"):
        graph.capture_end()


def test_a_session_keeps_the_collector_off_and_puts_it_back() -> None:
    with recording():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with recording():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_eager_code_between_captures_is_plain_eager(device: SoftwareDevice) -> None:
    x, out = torch.randn(4, 8), torch.zeros(4, 8)
    with device.recording():
        first, second = device.graph(), device.graph()
        first.capture_begin()
        doubled = x * 2
        first.capture_end()
        first.replay()
        assert torch.equal(doubled, x * 2)
        total = doubled.sum().item()
        assert x[x > 0].tolist() == [v for v in x.flatten().tolist() if v > 0]
        gc.collect()
        second.capture_begin()
        out.copy_(doubled * total)
        second.capture_end()
        second.replay()
    assert torch.equal(out, x * 2 * total)
    assert (first.node_count, second.node_count) == (1, 2)


NESTED: dict[str, tuple[Callable[[SoftwareDevice, SoftwareGraph], object], type[Exception], str]] = {
    "capture": (lambda d, g: SoftwareGraph().capture_begin(), CaptureError, "captures do not nest"),
    "session": (lambda d, g: d.recording().__enter__(), CaptureError, "sessions do not nest"),
    "replay": (lambda d, g: g.replay(), CaptureError, "while this thread captures"),
    "allocating": (lambda d, g: d.allocating(d.new_pool()), CaptureError, "while this thread captures"),
    "synchronize": (lambda d, g: d.synchronize(), CaptureError, "while this thread captures"),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_a_capture_cannot_contain_is_refused(device: SoftwareDevice, name: str) -> None:
    action, error, message = NESTED[name]
    ready = SoftwareGraph()
    ready.capture_begin()
    ready.capture_end()
    with device.recording():
        graph = device.graph()
        graph.capture_begin()
        with pytest.raises(error, match=message):
            action(device, ready)
        graph.capture_end()


def test_misuse_names_the_value_and_the_way_out(device: SoftwareDevice) -> None:
    graph = SoftwareGraph()
    with pytest.raises(RuntimeError, match="it is empty, not captured"):
        graph.replay()
    with pytest.raises(RuntimeError, match="without capture_begin"):
        graph.capture_end()
    with pytest.raises(ValueError, match=r"\(0, 0\) is no pool .*new_pool"):
        graph.capture_begin(pool=(0, 0))
    with pytest.raises(ValueError, match="'loose' is none of global, thread_local, relaxed"):
        graph.capture_begin(capture_error_mode="loose")
    with pytest.raises(CaptureError, match="open a session first"):
        device.graph()
    with pytest.raises(ValueError, match=r"outside every pool, \[3\]"):
        device.alias(torch.zeros(3))
    graph.capture_begin()
    graph.capture_end()
    with pytest.raises(RuntimeError, match="already holds a recording"):
        graph.capture_begin()


def test_an_empty_graph_is_legal_and_views_and_allocations_are_no_nodes() -> None:
    x, graph = torch.randn(4, 8), SoftwareGraph()
    graph.capture_begin()
    x.t()[1:3].unsqueeze(0).expand(3, 2, 4)
    torch.empty(8)
    graph.capture_end()
    assert graph.node_count == 0
    graph.replay()


def test_a_graph_can_be_reset_and_captured_again() -> None:
    x, out, graph = torch.randn(4), torch.zeros(4), SoftwareGraph()
    for factor in (2, 3):
        graph.reset()
        graph.capture_begin()
        out.copy_(x * factor)
        graph.capture_end()
        graph.replay()
        assert torch.equal(out, x * factor)


def test_another_thread_goes_on_as_if_nothing_were_recorded(device: SoftwareDevice) -> None:
    x, out, pool = torch.randn(64, 64), torch.zeros(64, 64), device.new_pool()
    seen: dict[str, Any] = {}

    def other() -> None:
        with torch.inference_mode():
            made = torch.randn(64, 64) @ x
            seen["owned"] = device.owns(pool, made)
            seen["item"] = made.sum().item()
            seen["list"] = made[made > 0].tolist()[:1]
            graph = SoftwareGraph()  # its own capture, in its own session
            result = torch.zeros(64)
            graph.capture_begin()
            result.copy_(x[0] * 2)
            graph.capture_end()
            graph.replay()
            seen["own graph"] = torch.equal(result, x[0] * 2)

    graph = SoftwareGraph()
    graph.capture_begin(pool)
    y = x + 1
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with pytest.raises(CaptureError, match=r"Tensor\.item"):
        y.sum().item()
    graph.abort()
    assert seen["owned"] is False
    assert isinstance(seen["item"], float)
    assert len(seen["list"]) == 1
    assert seen["own graph"] is True

    again = SoftwareGraph()
    again.capture_begin(pool)
    out.copy_(x + 1)
    again.capture_end()
    assert again.census() == {"aten::add": 1, "aten::copy_": 1}


def test_two_threads_cannot_capture_into_one_pool(device: SoftwareDevice) -> None:
    pool, caught = device.new_pool(), []

    def other() -> None:
        try:
            SoftwareGraph().capture_begin(pool)
        except CaptureError as error:
            caught.append(str(error))

    graph = SoftwareGraph()
    graph.capture_begin(pool)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    graph.capture_end()
    assert "another thread is capturing" in caught[0]


def test_host_metadata_may_be_read_and_staged_but_not_mixed(device: SoftwareDevice) -> None:
    lengths, x, out = host(torch.tensor([3, 5, 7, 2])), torch.randn(4), torch.zeros(4, dtype=torch.int64)
    back = host(torch.zeros(4))
    graph = SoftwareGraph()
    graph.capture_begin()
    longest = lengths.max()
    assert longest.item() == 7
    assert lengths[1:].tolist() == [5, 7, 2]
    out.copy_(lengths, non_blocking=True)
    back.copy_(x * longest, non_blocking=True)
    with pytest.raises(CaptureError, match=r"aten::mul .*reads host memory \(marked with host"):
        x * lengths
    graph.capture_end()
    assert not out.any()
    assert not back.any()
    lengths.copy_(torch.tensor([1, 1, 2, 9]))
    graph.replay()
    assert out.tolist() == [1, 1, 2, 9]  # a copy from staging is live
    assert torch.equal(back, x * 7)  # a value read on the host is frozen


def test_a_host_constant_of_one_capture_serves_the_next(device: SoftwareDevice) -> None:
    x, out = torch.randn(4), torch.zeros(4)
    with device.recording():
        first, second = device.graph(), device.graph()
        first.capture_begin()
        scale = torch.tensor(0.5)
        y = x * scale
        first.capture_end()
        second.capture_begin()
        out.copy_(y * scale)
        second.capture_end()
    del scale
    first.replay()
    second.replay()
    assert torch.equal(out, x * 0.5 * 0.5)


def test_poison_can_be_switched_off_and_free_blocks_filled_by_hand(device: SoftwareDevice) -> None:
    pool = device.new_pool()
    with poisoning(False):
        assert not device.poison
        with device.allocating(pool):
            t = torch.ones(16)
        stale = device.alias(t)
        del t
        assert stale.eq(1).all()
        assert device.poison_free(pool) == 64
        assert stale.isnan().all()
    assert device.poison
