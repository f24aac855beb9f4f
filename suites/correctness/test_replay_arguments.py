"""A replay reads the addresses and values of its recording: another tensor or a changed scalar goes unseen.

Arguments that can be brought there are copied and counted; all others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from atom_impl.device import get_device
from atom_impl.utils.region_graph import ReplayError, TokenGraph
from atom_impl.utils.step_ledger import CopyKind
from suites.correctness.region_steps import WIDTH, Step, recorded, run

pytestmark = pytest.mark.usefixtures("inference", "clean_pool")


def test_an_argument_at_another_address_is_copied_in_and_counted(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    graph = recorded(lambda t: t + 1, x, dev)
    elsewhere = torch.randn(4, WIDTH, device=dev)
    step = Step(4, dev)
    with step("replay"):
        out = graph.replay(elsewhere, phase="decode")
    assert torch.equal(out, elsewhere + 1)
    assert step.record.copies[CopyKind.COPY_IN].bytes == elsewhere.nbytes


def test_fewer_rows_than_the_bucket_get_a_zero_tail_that_is_counted(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    graph = recorded(lambda t: t + 1, x, dev)
    step = Step(3, dev)
    with step("replay"):
        out = graph.replay(torch.ones(3, WIDTH, device=dev), phase="decode")
    assert torch.equal(out[3], torch.ones(WIDTH, device=dev))
    assert step.record.copies[CopyKind.PADDING].count == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.double(), "recorded as a tensor"),
        (lambda x: x[:, : WIDTH // 2].contiguous(), "recorded as a tensor"),
        (lambda x: None, "agree on their rows"),
    ],
)
def test_an_argument_of_another_kind_is_refused_by_name(
    change: Callable[..., Any], message: str, dev: torch.device
) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    graph = recorded(lambda t: t + 1, x, dev)
    with Step(4, dev)("replay"), pytest.raises(ReplayError, match=message):
        graph.replay(change(x), phase="decode")


def test_a_changed_scalar_or_none_pattern_is_refused(dev: torch.device) -> None:
    x = torch.randn(4, WIDTH, device=dev)
    graph = TokenGraph(device=get_device(dev.type))
    with Step(4, dev)():
        graph.learn(x)
    with Step(4, dev)("record"):
        graph.record(lambda t, factor, other: t * factor, x, 2.0, None, phase="decode")
    with Step(4, dev)("replay"):
        with pytest.raises(ReplayError, match=r"recorded as 2\.0 and is 3\.0"):
            graph.replay(x, 3.0, None, phase="decode")
        with pytest.raises(ReplayError, match="recorded as None"):
            graph.replay(x, 2.0, x, phase="decode")


def test_metadata_that_moved_is_named_down_to_its_leaf(dev: torch.device) -> None:
    lens = torch.ones(4, device=dev)
    x = torch.randn(4, WIDTH, device=dev)
    step = Step(4, dev)
    step.metadata["inner"] = {"lens": [lens]}
    graph = TokenGraph(device=get_device(dev.type))
    run(graph, lambda t: t + 1, x, step, "record")
    step.metadata["inner"] = {"lens": [lens.clone()]}
    with step("replay"), pytest.raises(ReplayError, match=r"attn_metadata\['inner'\]\['lens'\]\[0\] moved"):
        graph.replay(x, phase="decode")
