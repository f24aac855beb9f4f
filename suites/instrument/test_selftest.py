"""A gate that nobody has seen fail is not evidence. The self-test plants faults and counts; here its faults are held
against the probes one by one, and its counting against numbers that cannot pass.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from harness.cells import Cell
from harness.comparison.matrix import Judgement, Outcome
from harness.engines.base import Arm, Phase, StepBatch, StepResult
from harness.job import UnitSpec
from harness.machine import fingerprint, revision
from harness.plan import SERVING, Unit
from harness.plugins import find_engine
from harness.profiles import load_profile
from harness.selftest.faults import FAULTS, SLOWER_BY, put_into, slower_step
from harness.selftest.journal import Journal, Trials
from harness.selftest.latest import latest_file, latest_sentence
from harness.selftest.suite import PROBED, SLOWER, Effort, Line, SelfTest, as_record, simulated
from harness.selftest.trials import Trial, TrialOrder, run_trial
from suites.instrument.spine import CHECKOUT

UNIT = Unit(Cell.of(model="random:tiny-llama", mode="FULL", ladder=[1, 2, 4]), SERVING, "bfloat16")
BATCH = StepBatch(Phase.DECODE, ((1,),), (4,), ((0,),))
FOUND_BY = {
    "extra copy": {"audit.copies", "audit.output"},
    "dropped graph": {"audit.launches"},
    "recompile": {"G1.artefact"},
    "flipped bit": {"G1", "G1.first", "G2"},
    "stale buffer": {"G1", "G1.first"},
}


@pytest.fixture(scope="module")
def engine() -> Any:
    return find_engine("atom_impl")


def trial(engine: Any, fault: str) -> Trial:
    order = TrialOrder(load_profile("tiny"), "cpu", UnitSpec.of(UNIT), fault, trials=1, seed=3)
    return run_trial(order, order.seed, engine)


def test_a_sound_session_fails_no_gate(engine: Any) -> None:
    control = trial(engine, "")
    assert control.failed == []
    assert control.decided > 20


@pytest.mark.parametrize("fault", PROBED)
def test_each_planted_fault_is_found_by_the_gate_that_is_there_for_it(engine: Any, fault: str) -> None:
    assert FOUND_BY[fault] & set(trial(engine, fault).failed)


def test_every_fault_is_either_probed_or_timed() -> None:
    assert {*PROBED, SLOWER} == set(FAULTS)


def step_of(hidden: torch.Tensor) -> Any:
    return lambda batch, arm, **more: StepResult(hidden, hidden, {"segments": 1, "bucket": 1})


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_touches_no_arm_but_the_replayed_one(fault: str) -> None:
    hidden = torch.arange(8.0).reshape(1, 8)
    session: Any = SimpleNamespace(step=step_of(hidden))
    put_into(session, fault, seed=1)
    for _ in range(40):
        assert session.step(BATCH, Arm.C).hidden.equal(torch.arange(8.0).reshape(1, 8))


def test_a_fault_that_nobody_knows_is_refused() -> None:
    with pytest.raises(KeyError, match="no such"):
        put_into(SimpleNamespace(step=None), "no such", 0)  # type: ignore[arg-type]


def test_the_slower_step_is_slower_by_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1e-4
        return now[0]

    def takes_a_second(batch: StepBatch, arm: Arm, **more: Any) -> StepResult:
        now[0] += 1.0
        return StepResult(torch.zeros(1), torch.zeros(1), {})

    monkeypatch.setattr("harness.selftest.faults.time.perf_counter", clock)
    slower_step(takes_a_second, random.Random(0))(BATCH, Arm.R)
    assert now[0] == pytest.approx(1 + SLOWER_BY["cpu"], abs=1e-3)


@pytest.mark.parametrize(
    ("wanted", "hits", "ok"),
    [("none", 0, True), ("none", 1, False), ("all", 3, True), ("all", 2, False), ("report", 1, True)],
)
def test_one_alarm_or_one_miss_is_enough_to_fail(wanted: str, hits: int, ok: bool) -> None:
    line = Line("thing", hits, 3, wanted)
    assert line.ok is ok
    assert ("✗" in str(line)) is not ok


def test_few_trials_make_wide_bounds_and_they_are_printed() -> None:
    assert "0 of 3 (95 % bounds 0.0 to 63.2 %)" in str(Line("thing", 0, 3, "none"))
    assert "0 of 300 (95 % bounds 0.0 to 1.0 %)" in str(Line("thing", 0, 300, "none"))


def test_the_verdict_rules_pass_their_own_test_on_drawn_numbers() -> None:
    lines = list(simulated(40))
    assert all(line.ok for line in lines)
    assert sum(line.wanted == "none" for line in lines) == 6


class Outcomes(SelfTest):
    """A self-test whose comparisons end as given."""

    ends: Iterator[list[Outcome]]

    def _course(self, fault: str, logs: Path, number: int) -> Any:
        judged = {str(i): Judgement(outcome, None, "") for i, outcome in enumerate(next(self.ends))}
        return SimpleNamespace(run=lambda: judged, cells={})

    def _trials(self, fault: str, count: int, done: int) -> list[Trial]:
        return [Trial(done + i, ["G1"] if fault else [], 9) for i in range(count)]


def outcomes(path: Path, ends: list[list[Outcome]], effort: Effort, key: str = "k") -> Outcomes:
    plan: Any = SimpleNamespace(device="cpu")
    test = Outcomes(plan, effort, Path(), Path(), lambda text: None, Journal(path / "journal.jsonl", key, "2026"))
    test.ends = iter(ends)
    return test


def timed(path: Path, ends: list[list[Outcome]], *, same: int = 0, slower: int = 0) -> list[Line]:
    return [
        line for line in outcomes(path, ends, Effort(same, slower, 0, 4)).run() if not line.name.startswith("drawn")
    ]


def test_comparisons_go_on_until_there_are_as_many_verdicts_as_wanted(tmp_path: Path) -> None:
    (line,) = timed(tmp_path, [[Outcome.PASS] * 4, [Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL]], same=6)
    assert (line.hits, line.trials, line.ok) == (1, 7, False)
    assert "1 inconclusive" in line.note


def test_a_slower_step_that_is_passed_or_called_faster_is_a_miss_and_an_undecided_one_is_not(tmp_path: Path) -> None:
    ends = [[Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.FASTER]]
    missed, found = timed(tmp_path, ends, slower=4)
    assert (missed.hits, missed.ok) == (2, False)
    assert (found.hits, found.wanted) == (1, "report")


def test_a_self_test_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    effort = Effort(4, 0, 7, 4)
    first = outcomes(tmp_path, [[Outcome.PASS] * 2], effort)
    with pytest.raises(RuntimeError):  # the second comparison never comes: that is the kill
        list(first.run())
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"type":"verdicts","fault":"","outc')  # cut short
    again = outcomes(tmp_path, [[Outcome.PASS] * 2], effort)
    lines = {line.name: line for line in again.run()}
    assert lines["identical code: verdict FAIL"].trials == 4
    assert lines["stale buffer: found by a gate"].trials == 7
    pieces = [piece for piece in again.journal.pieces if isinstance(piece, Trials) and piece.fault == "recompile"]
    assert [len(piece.failed) for piece in pieces] == [5, 2]
    assert outcomes(tmp_path, [], effort, key="other code").journal.pieces == []


def test_a_round_counts_a_few_of_everything(tmp_path: Path) -> None:
    test = outcomes(tmp_path, [[Outcome.PASS], [Outcome.FAIL]], Effort(300, 60, 60, 4))
    seen: list[int] = []
    test.progressed = lambda lines: seen.append(len(lines))
    assert test._round()
    assert {len(test.journal.trials(fault)) for fault in ("", *PROBED)} == {5}
    assert test.journal.outcomes("").total() == test.journal.outcomes(SLOWER).total() == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([Line("identical code: verdict FAIL", 0, 300, "none")], "0 of 300 false alarms (below 1.0 %), every planted"),
        ([Line("identical code: verdict FAIL", 1, 6, "none")], "NOT clean: identical code: verdict FAIL"),
        ([Line("stale buffer: found by a gate", 2, 3, "all")], "NOT clean: stale buffer"),
    ],
)
def test_a_sign_off_carries_the_latest_self_test_and_its_misses(tmp_path: Path, lines: list[Line], said: str) -> None:
    assert "No self-test of this kind of machine is kept" in latest_sentence(tmp_path, "cpu-x")
    file = latest_file(tmp_path, "cpu-x")
    file.parent.mkdir()
    file.write_bytes(as_record(lines, Effort(1, 1, 1, 1), {"finished": "2026-05-04T01:02:03+00:00"}))
    assert said in latest_sentence(tmp_path, "cpu-x")
    file.write_text("{")
    assert "cannot be read" in latest_sentence(tmp_path, "cpu-x")


def test_what_is_kept_holds_the_bounds_beside_the_counts() -> None:
    kept = msgspec.json.decode(as_record([Line("thing", 0, 60, "none")], Effort(1, 1, 1, 1), {"device": "cpu"}))
    assert kept["lines"][0]["high"] < 0.05
    assert kept["device"] == "cpu"


def test_this_machines_own_facts_can_be_kept() -> None:
    """torch's version is a class of its own: forty minutes of trials ended in an encoder that did not know it."""
    facts = {"software": fingerprint()["software"], "revision": revision(CHECKOUT)}
    kept = msgspec.json.decode(as_record([Line("thing", 0, 1, "none")], Effort(1, 1, 1, 1), facts))
    assert kept["software"]["torch"] == torch.__version__
