"""Guards against a counter that only its allocation cleared: right in the first replay, and then never again.

The recording itself tells: it reads memory as it finds it and leaves it changed. A kernel that sets its counter back
reads it as found as well, and has to stay silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from atom_impl.models.llama import LlamaMLP
from atom_impl.utils.region_graph import current_session
from harness.cells import Cell
from harness.engines.atom_impl import AtomImpl
from harness.engines.base import Arm, EngineSession, Phase, SessionSpec, StepBatch

Forward = Callable[..., torch.Tensor]
BATCH = StepBatch(Phase.DECODE, ((7,), (9,)), (3, 5), ((0,), (1,)))


def counted(forward: Forward, self: Any, x: torch.Tensor, *, restore: bool) -> torch.Tensor:
    counter = self.__dict__.setdefault("arrivals", torch.zeros(1, dtype=x.dtype))
    if current_session() is None and not restore:
        counter.zero_()
    counter.add_(1)
    result = forward(self, x) * (2 - counter)
    if restore:
        counter.zero_()
    return result


@pytest.fixture
def opened() -> Iterator[Callable[[str], EngineSession]]:
    sessions: list[EngineSession] = []

    def open_cell(mode: str) -> EngineSession:
        spec = SessionSpec("float32", "cpu", max_num_seqs=2, max_model_len=32, block_size=16, num_blocks=4)
        sessions.append(AtomImpl().open(Cell.of(model="random:tiny-llama", mode=mode, ladder=[1, 2]), spec))
        sessions[-1].capture()
        return sessions[-1]

    with torch.inference_mode():
        yield open_cell
    for session in sessions:
        session.close()


def plant(monkeypatch: pytest.MonkeyPatch, *, restore: bool) -> None:
    forward = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: counted(forward, self, x, restore=restore))


@pytest.mark.parametrize("mode", ["TR_HYBRID", "FULL"])
def test_a_counter_that_nobody_sets_back_is_named_with_the_place(
    mode: str, opened: Callable[[str], EngineSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, restore=False)
    found = opened(mode).carried_over(BATCH)
    assert found
    assert "aten::add_([1] float32)" in found[0]
    assert "test_probe_rearm.py" in found[0]


@pytest.mark.parametrize("mode", ["TR_HYBRID", "FULL"])
def test_a_counter_that_the_graph_restores_and_a_clean_model_stay_silent(
    mode: str, opened: Callable[[str], EngineSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened(mode).carried_over(BATCH) == []
    plant(monkeypatch, restore=True)
    session = opened(mode)
    assert session.carried_over(BATCH) == []
    assert session.step(BATCH, Arm.R).claim["effective_mode"] == mode
