"""Guards against a collective that is still under way when a region breaks the segment.

On a GPU its stream is then not joined: at best the capture fails with a word about "unjoined work", at worst the region
reads half a result. On a CPU the result is there at once and every test is green. Both forms are driven on a real
process group of one rank: c10d's work handles, and functional collectives whose results wait when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives

from atom_impl.config import Config
from atom_impl.device import CaptureError, Device, get_device
from atom_impl.device.debug import DebugDevice
from atom_impl.device.software import SoftwareGraph
from atom_impl.graphs.recording import Segment
from atom_impl.utils.forward_context import Context, forward_context
from atom_impl.utils.region_graph import TokenGraph, eager_region, reset_graph_pool

dist: Any = torch.distributed
functional: Any = torch.distributed._functional_collectives
ROWS, WIDTH = 4, 8
Forward = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with torch.inference_mode():
        yield
    reset_graph_pool()
    dist.destroy_process_group()


@eager_region
def negated(x: torch.Tensor) -> torch.Tensor:
    return -x


def begun_with_a_handle(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    y = negated(x + 1) + y
    work.wait()
    return y


def waited_with_a_handle(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x + 1  # overlaps with the collective, which is what the handle is for
    work.wait()
    return negated(z) + y


def synchronous(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return negated(x + 1) + y


def begun_functional(x: torch.Tensor) -> torch.Tensor:
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    return negated(x + 1) + y


def waited_functional(x: torch.Tensor) -> torch.Tensor:
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 0
    return negated(x + 1) + y


def waited_functional_by_name(x: torch.Tensor) -> torch.Tensor:
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    return negated(x + 1) + functional.wait_tensor(y)


def result_into_a_region(x: torch.Tensor) -> torch.Tensor:
    return negated(functional.all_reduce(x * 2, "sum", dist.group.WORLD)) + 1


def begun_at_the_end(x: torch.Tensor) -> torch.Tensor:
    y = negated(x) * 2
    dist.all_reduce(y, async_op=True)
    return y


def expected(x: torch.Tensor) -> torch.Tensor:
    return -(x + 1) + x * 2


def record(forward: Forward, x: torch.Tensor, device: Device | None = None) -> TokenGraph:
    graph = TokenGraph(device=device or get_device("cpu"))
    with context(None):
        graph.learn(x * 1.0)
    with context("record"):
        graph.record(forward, x, phase="decode")
    return graph


def context(action: Any) -> Any:
    described = Context(torch.zeros(ROWS), is_prefill=False, batch_size=ROWS, running_bs=ROWS)
    return forward_context({"max_seqlen_q": 1}, Config(device="cpu"), described, tr_graph=action)


def collectives(graph: TokenGraph) -> list[list[str]]:
    """Of each segment, the collectives that it holds."""
    (recording,) = graph.recordings().values()
    segments = [step.graph for step in recording.steps if isinstance(step, Segment)]
    return [[op.name for op in segment.entries() if "c10d" in op.name] for segment in segments]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("forward", "name", "line"),
    [
        (begun_with_a_handle, "c10d::allreduce_", "begun_with_a_handle"),
        (begun_functional, "_c10d_functional::all_reduce", "begun_functional"),
        (result_into_a_region, "_c10d_functional::all_reduce", "result_into_a_region"),
        (begun_at_the_end, "c10d::allreduce_", "begun_at_the_end"),
    ],
)
def test_a_collective_under_way_when_its_segment_ends_is_refused_by_name_and_place(
    forward: Forward, name: str, line: str
) -> None:
    with pytest.raises(CaptureError, match=rf"{name} at .*test_async_collectives.py:\d+ in {line} is not waited for"):
        record(forward, torch.randn(ROWS, WIDTH))
    graph = record(synchronous, torch.randn(ROWS, WIDTH))
    assert graph.captured_sizes("decode") == [ROWS], "the refusal left nothing behind"


@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (waited_with_a_handle, "c10d::allreduce_"),
        (synchronous, "c10d::allreduce_"),
        (waited_functional, "_c10d_functional::all_reduce"),
    ],
)
def test_a_collective_that_was_waited_for_is_one_launch_of_its_segment_and_replays(forward: Forward, name: str) -> None:
    x = torch.randn(ROWS, WIDTH)
    graph = record(forward, x)
    assert collectives(graph) == [[name], []]
    for _ in range(2):
        x.normal_()
        with context("replay"):
            assert torch.equal(graph.replay(x, phase="decode"), expected(x))


def test_a_wait_on_the_far_side_of_a_region_is_too_late() -> None:
    with pytest.raises(CaptureError, match="is not waited for when its segment ends"):
        record(waited_functional_by_name, torch.randn(ROWS, WIDTH))


def test_a_region_may_not_leave_a_collective_under_way() -> None:
    pending: list[Any] = []

    @eager_region
    def reduced(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        pending.append(dist.all_reduce(y, async_op=True))
        return y

    with pytest.raises(CaptureError, match="is not waited for when its region ends"):
        record(lambda x: reduced(x + 1) + 1, torch.randn(ROWS, WIDTH))
    assert pending.pop().wait()


def test_a_region_that_waits_is_legal_in_both_forms() -> None:
    @eager_region
    def by_handle(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        return y

    @eager_region
    def by_use(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 0

    for region in (by_handle, by_use):
        x = torch.randn(ROWS, WIDTH)
        graph = record(lambda t, region=region: region(t + 1) + 1, x)  # type: ignore[misc]
        x.normal_()
        with context("replay"):
            assert torch.equal(graph.replay(x, phase="decode"), (x + 1) * 2 + 1)


def test_a_region_may_return_a_functional_result_because_the_hand_off_waits() -> None:
    @eager_region
    def reduced(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD)

    x = torch.randn(ROWS, WIDTH)
    graph = record(lambda t: reduced(t + 1) + 1, x)
    for _ in range(2):
        x.normal_()
        with context("replay"):
            assert torch.equal(graph.replay(x, phase="decode"), (x + 1) * 2 + 1)


@pytest.mark.parametrize("forward", [waited_with_a_handle, synchronous, waited_functional])
def test_a_debug_replay_makes_the_collective_again_as_well(forward: Forward) -> None:
    calls = 0
    x = torch.randn(ROWS, WIDTH)
    graph = record(forward, x, DebugDevice(get_device("cpu")))
    (recording,) = graph.recordings().values()
    for step in recording.steps:
        if isinstance(step, Segment):
            log: Any = step.graph._log  # type: ignore[attr-defined]
            calls += sum("c10d" in call.name for call in log.calls)
    assert calls == 1
    x.normal_()
    with context("replay"):
        assert torch.equal(graph.replay(x, phase="decode"), expected(x))


def test_a_single_graph_of_a_stranger_is_held_to_the_same_rule() -> None:
    x, out = torch.randn(ROWS), torch.zeros(ROWS)
    graph = SoftwareGraph()
    graph.capture_begin()
    out.copy_(x)
    work = dist.all_reduce(out, async_op=True)
    with pytest.raises(CaptureError, match="is not waited for when its segment ends"):
        graph.capture_end()
    assert work is not None
    assert torch.equal(out, torch.zeros(ROWS)), "what the collective wrote was taken back"
