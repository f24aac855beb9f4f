"""Work beside the main stream comes back within its segment, and whatever shares memory with it waits for it.

A CPU runs the program in order, so a missing wait has no effect there; on a GPU it is one wrong step in thousands. The
recording knows the edges, and refuses what no edge orders.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from atom_impl.device.software import CaptureError, Edge, SoftwareDevice, SoftwareGraph, launch

pytestmark = pytest.mark.usefixtures("inference")

SIDE = "indexer"


@pytest.fixture
def device() -> SoftwareDevice:
    return SoftwareDevice()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 16)


def captured(function: Callable[[], object]) -> SoftwareGraph:
    graph = SoftwareGraph()
    graph.capture_begin()
    try:
        function()
        graph.capture_end()
    except BaseException:
        graph.abort()
        raise
    return graph


def test_joined_work_replays_as_plain_code_runs_and_leaves_its_edges(device: SoftwareDevice, x: torch.Tensor) -> None:
    side, out = device.side_stream(SIDE), torch.zeros(4, 16)

    def forward() -> None:
        hidden = x * 2
        side.fork()
        with side:
            scores = hidden.softmax(-1)
        hidden = hidden + 1  # beside it
        side.join()
        out.copy_(hidden * scores)

    graph = captured(forward)
    for _ in range(2):
        x.normal_()
        graph.replay()
        replayed = out.clone()
        forward()  # without a capture, a side stream runs where it stands
        assert torch.equal(replayed, out)
    assert graph.edges() == (Edge("main", SIDE, 1), Edge(SIDE, "main", 3))


def test_a_stream_that_is_not_joined_is_named_with_the_place_of_its_fork(
    device: SoftwareDevice, x: torch.Tensor
) -> None:
    def forward() -> None:
        side = device.side_stream(SIDE)
        side.fork()
        with side:
            x.neg()

    with pytest.raises(
        CaptureError, match=r"side stream 'indexer', forked at .*test_streams.py:\d+ in forward, is not"
    ):
        captured(forward)


def test_work_for_a_stream_that_was_not_forked_is_refused(device: SoftwareDevice, x: torch.Tensor) -> None:
    side = device.side_stream(SIDE)

    def forward() -> None:
        with side:
            x.neg()

    with pytest.raises(CaptureError, match=r"'indexer' .*outside the graph; call fork\(\) first"):
        captured(forward)
    with pytest.raises(CaptureError, match="which this segment has not forked"):
        captured(side.join)
    with pytest.raises(ValueError, match="cannot be called 'main'"):
        device.side_stream("main")


@pytest.mark.parametrize("fault", [False, True])
def test_a_result_that_is_read_before_the_join_is_a_race(fault: bool, device: SoftwareDevice, x: torch.Tensor) -> None:
    side = device.side_stream(SIDE)

    def forward() -> None:
        side.fork()
        with side:
            scores = x.exp()
        early = scores + 1 if fault else x + 1
        side.join()
        early.add_(scores)

    if not fault:
        captured(forward)
        return
    with pytest.raises(CaptureError, match=r"aten::add.* on stream 'main', does not wait for aten::exp.*'indexer'"):
        captured(forward)


@pytest.mark.parametrize("fault", [False, True])
def test_what_the_main_stream_writes_after_the_fork_is_not_seen_without_another(
    fault: bool, device: SoftwareDevice, x: torch.Tensor
) -> None:
    side, slots = device.side_stream(SIDE), torch.zeros(4, 16)

    def forward() -> None:
        side.fork()
        slots.copy_(x)
        if not fault:
            side.fork()
        with side:
            slots.exp()
        side.join()

    if not fault:
        captured(forward)
        return
    with pytest.raises(CaptureError, match=r"aten::exp.* on stream 'indexer', does not wait for aten::copy_"):
        captured(forward)


@pytest.mark.parametrize("fault", [False, True])
def test_a_block_that_is_freed_while_a_side_stream_reads_it_is_a_race_when_it_is_reused(
    fault: bool, device: SoftwareDevice, x: torch.Tensor
) -> None:
    side = device.side_stream(SIDE)

    def forward() -> None:
        hidden = x * 2
        side.fork()
        with side:
            scores = hidden.exp()
        if fault:
            del hidden
        other = x * 3  # the size of `hidden`
        side.join()
        other.add_(scores)

    if not fault:
        captured(forward)
        return
    with pytest.raises(
        CaptureError, match=r"touch the same memory; .* keep what a side stream reads until it is joined"
    ):
        captured(forward)


def test_two_side_streams_race_unless_one_waits_for_the_other(device: SoftwareDevice, x: torch.Tensor) -> None:
    first, second, state = device.side_stream("first"), device.side_stream("second"), torch.zeros(16)

    def forward(ordered: bool) -> None:
        first.fork()
        with first:
            state.add_(x[0])
            if ordered:
                second.fork()
        if not ordered:
            second.fork()
        with second:
            state.add_(x[1])
        first.join()
        second.join()

    graph = captured(lambda: forward(True))
    graph.replay()
    assert torch.equal(state, x[0] + x[1])
    with pytest.raises(CaptureError, match=r"on stream 'second', does not wait for .* on stream 'first'"):
        captured(lambda: forward(False))


@pytest.mark.parametrize("columns", [slice(8, 16), slice(7, 15)])
def test_views_race_only_where_their_elements_meet(columns: slice, device: SoftwareDevice, x: torch.Tensor) -> None:
    side, out = device.side_stream(SIDE), torch.zeros(4, 16)

    def forward() -> None:
        side.fork()
        with side:
            out[:, :8].copy_(x[:, :8])
        out[:, columns].copy_(x[:, columns])
        side.join()

    if columns.start == 8:
        captured(forward).replay()
        assert torch.equal(out, x)
        return
    with pytest.raises(CaptureError, match="touch the same memory"):
        captured(forward)


def test_a_foreign_kernel_races_with_what_it_may_write(device: SoftwareDevice, x: torch.Tensor) -> None:
    side, out, other = device.side_stream(SIDE), torch.zeros(4, 16), torch.zeros(4, 16)

    def kernel(to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source)

    def forward(written: tuple[int, ...] | None) -> None:
        side.fork()
        with side:
            launch(kernel, out, x, written=written)
        launch(kernel, other, x, written=written)
        side.join()

    captured(lambda: forward((0,))).replay()
    assert torch.equal(out, x)
    assert torch.equal(other, x)
    with pytest.raises(CaptureError, match="touch the same memory"):
        captured(lambda: forward(None))


def test_buckets_with_side_work_still_cost_what_the_largest_costs(device: SoftwareDevice) -> None:
    weight, x, out = torch.randn(256, 256), torch.randn(8, 256), torch.zeros(8, 256)
    side = device.side_stream(SIDE)

    def forward(rows: int) -> None:
        hidden = x[:rows] @ weight
        for _ in range(3):
            side.fork()
            with side:
                scores = (hidden + 1).softmax(-1)
                del scores  # nobody may reuse it before the join
                scores = (hidden * 2).softmax(-1)
            hidden = (hidden @ weight).tanh()
            side.join()
            hidden = hidden * scores
        out[:rows].copy_(hidden)

    def cost(buckets: list[int]) -> int:
        pool = device.new_pool()
        with device.recording():
            for rows in buckets:
                graph = device.graph()
                graph.capture_begin(pool=pool)
                forward(rows)
                graph.capture_end()
                graph.replay()
                replayed = out[:rows].clone()
                forward(rows)
                assert torch.equal(replayed, out[:rows])
        assert pool.used_bytes == 0
        return device.pool_bytes(pool)

    alone = cost([8])
    assert alone > 0
    assert cost([8, 4, 2, 1]) <= 1.15 * alone


def test_a_capture_that_failed_over_a_stream_leaves_the_pool_as_it_was(device: SoftwareDevice, x: torch.Tensor) -> None:
    side, out, pool = device.side_stream(SIDE), torch.zeros(4, 16), device.new_pool()
    with device.recording():
        graph = device.graph()
        graph.capture_begin(pool=pool)
        side.fork()
        with side:
            scores = x.exp()
        del scores
        with pytest.raises(CaptureError, match="is not joined"):
            graph.capture_end()
        assert pool.used_bytes == 0
        graph = device.graph()
        graph.capture_begin(pool=pool)
        out.copy_(x + 1)
        graph.capture_end()
    graph.replay()
    assert torch.equal(out, x + 1)
    assert device.pool_bytes(pool) <= 2 * x.nbytes
