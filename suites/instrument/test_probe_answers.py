"""An answer kept for a later cell must be that cell's own: a stale one would hide a change of the eager model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from harness.cells import Cell
from harness.engines.base import Arm, PadFill, Phase, StepBatch, StepResult
from harness.probes import ProbeContext, ProbeResult, measure
from harness.probes.answers import Answers, asked_by, shared_arm
from harness.probes.numerics.arms import Bench
from harness.probes.numerics.kv import KvImage
from harness.probes.trace import StepTrace
from harness.records import Status
from suites.instrument.probe_bench import context_of, failed, gate
from suites.instrument.toy_session import ToySession, one_thread


class Counting(ToySession):
    """Counts the steps that it is really asked for, by arm."""

    driven: Counter[Arm]

    def step(self, batch: StepBatch, arm: Arm, *, rows: int | None = None, pad: PadFill = PadFill.ENGINE) -> StepResult:
        self.driven = getattr(self, "driven", None) or Counter()
        self.driven[arm] += 1
        return super().step(batch, arm, rows=rows, pad=pad)


class Worn(Counting):
    """Its weights are no longer those of the cell before it."""

    def capture(self) -> Any:
        self.weights.down[-1][3] *= 2.0  # nothing of it reaches the cache
        return super().capture()


def one_after_another(*cells: tuple[type[ToySession], str], **changes: Any) -> list[tuple[ProbeContext, ProbeResult]]:
    answers, measured = Answers(), []
    with one_thread():
        for session_type, mode in cells:
            context = context_of(session_type, mode=mode, lane="float32", **changes)
            context = ProbeContext(**{**vars(context), "answers": answers})
            measured.append((context, measure(context)))
    return measured


@pytest.mark.parametrize("workload", ["decode", "prefill"])
def test_a_later_cell_runs_only_the_eager_steps_that_its_repeat_gate_needs(workload: str) -> None:
    modes = ("TR_HYBRID", "TR_HYBRID")
    (first, one), (second, two) = one_after_another(*((Counting, mode) for mode in modes), workload=workload)
    assert failed(one) == failed(two) == set()
    before, after = first.session.driven, second.session.driven  # type: ignore[attr-defined]
    assert before[Arm.REF] > 0
    assert after[Arm.REF] == 0
    assert 0 < after[Arm.E] < before[Arm.E]
    assert (after[Arm.C], after[Arm.R]) == (before[Arm.C], before[Arm.R])


def test_a_cell_judged_with_kept_answers_gets_the_figures_of_one_judged_alone() -> None:
    alone = one_after_another((Counting, "FULL"))[0][1]
    after = one_after_another((Counting, "TR_HYBRID"), (Counting, "FULL"))[1][1]
    for name in ("G3", "G4", "G5", "G6"):
        assert gate(after, name).evidence == gate(alone, name).evidence


def test_a_model_that_changed_since_the_answers_were_kept_is_not_judged_as_if_it_had_not() -> None:
    result = one_after_another((Counting, "TR_HYBRID"), (Worn, "FULL"))[1][1]
    repeat = gate(result, "G0")
    assert repeat.status is not Status.PASS
    assert "arm E" in repeat.message
    assert "G3" in failed(result)


def test_another_cache_asks_another_question() -> None:
    cache = [torch.zeros(4, 2, 8)]
    before = KvImage(cache).digest
    cache[0][3, 1, 7] = -0.0
    assert KvImage(cache).digest != before


def test_arms_that_a_cell_is_about_are_never_kept() -> None:
    compiled = {arm: shared_arm(Cell.of(level=3), arm) for arm in Arm}
    assert compiled == {Arm.E: Arm.E, Arm.C: None, Arm.R: None, Arm.REF: Arm.REF}


def test_without_a_compiler_the_compiled_arm_is_the_eager_one_and_the_replay_still_runs() -> None:
    assert [shared_arm(Cell.of(level=0), arm) for arm in (Arm.C, Arm.R)] == [Arm.E, None]
    driven = {}
    for level in (0, 3):
        ((context, result),) = one_after_another((Counting, "TR_HYBRID"), level=level)
        assert failed(result) == set()
        driven[level] = context.session.driven  # type: ignore[attr-defined]
    assert 0 < driven[0][Arm.C] < driven[3][Arm.C]
    assert driven[0][Arm.R] == driven[3][Arm.R] > 0


def test_answers_stop_being_kept_at_their_limit_and_are_run_again() -> None:
    answers = Answers(limit_bytes=1)
    context = context_of(Counting)

    bench = Bench(ProbeContext(**{**vars(context), "answers": answers}), StepTrace())
    batch = StepBatch(Phase.DECODE, ((1,),), (1,), ((0,),))
    with torch.inference_mode():
        runs = [bench.answer(batch, Arm.E) for _ in range(2)]
    assert answers.used_bytes == answers.found == 0
    assert torch.equal(runs[0].hidden, runs[1].hidden)


def test_models_and_dtypes_do_not_share_answers() -> None:
    cell, other = Cell.of(model="a"), Cell.of(model="b")
    batch = StepBatch(Phase.DECODE, ((1,),), (1,), ((0,),))

    def asked(cell: Cell, dtype: str) -> object:
        return asked_by(cell, dtype, Arm.E, batch, None, "state")

    assert len({asked(cell, "float32"), asked(other, "float32"), asked(cell, "bfloat16")}) == 3
    assert asked(cell, "float32") == asked(Cell.of(model="a", mode="FULL"), "float32")
