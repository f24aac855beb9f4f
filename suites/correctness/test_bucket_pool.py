"""Buckets with a pool each cost their sum, and an output that lies in the pool is overwritten by the next replay."""

from __future__ import annotations

import pytest
import torch

from atom_impl.device import get_device
from atom_impl.utils.region_graph import TokenGraph, graph_pool, reset_graph_pool
from suites.correctness.region_steps import WIDTH, Step, recorded, run, scaled

pytestmark = pytest.mark.usefixtures("inference", "clean_pool")


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


def test_outputs_live_outside_the_pool_and_keep_their_address(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    device = get_device(dev.type)
    graph = recorded(lambda t: t + 1, x, dev)
    with Step(4, dev)("replay"):
        first = graph.replay(x, phase="decode")
        second = graph.replay(x, phase="decode")
    assert first.data_ptr() == second.data_ptr()
    assert not device.owns(graph_pool(device), first)
