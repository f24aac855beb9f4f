"""Guards against a unit that replays another instance's graph, another phase's, or one made over other weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from atom_impl.utils.region_graph import ReplayError, token_graph
from suites.correctness.region_steps import WIDTH, Step, scaled

pytestmark = pytest.mark.usefixtures("inference", "clean_pool")


class Unit(nn.Module):
    def __init__(self, dev: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, device=dev), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(x @ self.weight) + 1


def test_each_instance_has_its_own_recordings_and_phases_are_counted_as_asked(dev: torch.device) -> None:
    unit_class = token_graph(type("Marked", (Unit,), {}))
    first, second = unit_class(dev), unit_class(dev)
    x = torch.randn(4, WIDTH, device=dev)
    for action in (None, "record"):
        with Step(4, dev)(action):
            first(x)
    assert first.token_graph.captured_sizes("decode") == [4]
    assert first.token_graph.captured_sizes("prefill") == []
    assert second.token_graph.captured_sizes("decode") == []
    with Step(4, dev, prefill=True)("record"):
        out = first(x)
    assert torch.equal(out, (x @ first.weight) * 2 + 1)
    assert first.token_graph.captured_sizes("prefill") == [4]
    assert len(first.token_graph.recordings()) == 1
    with pytest.raises(ValueError, match="'prefill' or 'decode'"):
        first.token_graph.captured_sizes("mixed")


def test_a_unit_per_phase_is_recorded_once_per_phase(dev: torch.device) -> None:
    unit = token_graph(per_phase=True)(type("PerPhase", (Unit,), {}))(dev)
    x = torch.randn(4, WIDTH, device=dev)
    for prefill in (False, True):
        for action in (None, "record"):
            with Step(4, dev, prefill=prefill)(action):
                unit(x)
    assert len(unit.token_graph.recordings()) == 2


def test_weights_swapped_after_the_recording_are_named_at_the_first_replay(dev: torch.device) -> None:
    unit = token_graph(type("Swapped", (Unit,), {}))(dev)
    x = torch.randn(4, WIDTH, device=dev)
    for action in (None, "record"):
        with Step(4, dev)(action):
            unit(x)
    kept = unit.weight.data
    unit.weight.data = torch.randn(WIDTH, WIDTH, device=dev)
    with Step(4, dev)("replay"), pytest.raises((ReplayError, RuntimeError), match="moved"):
        unit(x)
    assert kept is not None
