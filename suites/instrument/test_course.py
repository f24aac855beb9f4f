"""One slow night of a shared machine was bisected for two days. A FAIL is measured again from fresh processes, the same
code cannot regress, and a cell that a side failed has no verdict on its time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cells import Cell
from harness.comparison.course import Course
from harness.comparison.gates import lane_record
from harness.comparison.looks import LookPlan
from harness.comparison.matrix import Judgement, Outcome
from harness.comparison.paired import Budget
from harness.comparison.pairs import OpenedPair, item_of
from harness.comparison.peer import SideFailed
from harness.comparison.sides import Side
from harness.plan import SERVING, Unit
from harness.records import Fate, PairRecord, Status
from suites.instrument.spine import fake_profile

A = Side("baseline", "v1", "a" * 40, Path("a"), sys.executable, "code-a")
B = Side("candidate", "v2", "b" * 40, Path("b"), sys.executable, "code-b")
UNITS = [Unit(Cell.of(engine="fake", level=level, ladder=[1, 2]), SERVING, "float32") for level in (0, 3)]
Truth = Callable[[str, bool], float]


class PlannedPair:
    """Stands for two live processes whose log-ratio is `truth(item, again)` plus noise of their own."""

    def __init__(self, truth: Truth, noise: np.random.Generator, spread: float, artefacts: dict[str, str]) -> None:
        self.truth, self.noise, self.spread, self.artefacts = truth, noise, spread, artefacts
        self.opened: list[str] = []
        self.versions = {"A": {"torch": "1"}, "B": {"torch": "1"}}
        self.again, self.number = False, 0

    def __call__(self, *arguments: Any) -> PlannedPair:
        self.number, self.again = arguments[-2:]
        return self

    def __enter__(self) -> PlannedPair:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def open(self, unit: Unit) -> tuple[OpenedPair, list[int]]:
        self.opened.append(f"{unit.cell.id} {self.number}{' again' if self.again else ''}")
        return OpenedPair(unit, "decode", {"A": {"graph": "1"}, "B": self.artefacts}), [1, 2]

    def measure(self, unit: Unit, bucket: int) -> PairRecord:
        item = item_of(unit, bucket)
        ratio = self.truth(item, self.again) + self.spread * float(self.noise.normal())
        return PairRecord(
            cell=unit.cell.id,
            item=item,
            number=self.number,
            again=self.again,
            order=list("ABBA"),
            blocks_us=[[1.0], [2.0], [2.0], [1.0]],
            log_ratio=ratio,
            started="",
            phase="decode",
            artefacts={"A": {"graph": "1"}, "B": self.artefacts},
            versions=self.versions,
        )

    def close_cell(self) -> None:
        return None


def course_of(tmp_path: Path, truth: Truth, spread: float = 0.002, **more: Any) -> tuple[Course, PlannedPair]:
    planned = PlannedPair(truth, np.random.default_rng(5), spread, more.pop("artefacts", {"graph": "1"}))
    made: dict[str, Any] = {
        "profile": fake_profile(tmp_path),
        "device": "cpu",
        "sides": {"A": A, "B": B},
        "units": UNITS,
        "checkout": tmp_path,
        "logs": tmp_path,
        "keep": more.pop("kept", []).append,
        "say": lambda text: None,
        "plan": LookPlan(),
        "budget": Budget(0.02),
        "open_pair": planned,
    }
    return Course(**{**made, **more}), planned


def outcomes(final: dict[str, Judgement]) -> set[Outcome]:
    return {judged.outcome for judged in final.values()}


def one_is_slow(item: str, again: bool) -> float:
    return 0.05 if item == f"{UNITS[1].cell.id}@2" else 0.0


def test_identical_code_passes_at_the_first_look_and_costs_no_more_pairs(tmp_path: Path) -> None:
    course, planned = course_of(tmp_path, lambda item, again: 0.0)
    assert outcomes(course.run()) == {Outcome.PASS}
    assert len(planned.opened) == 2 * 5


def test_only_the_slow_bucket_fails_and_only_its_cell_is_measured_again(tmp_path: Path) -> None:
    kept: list[PairRecord] = []
    course, planned = course_of(tmp_path, one_is_slow, kept=kept)
    final = course.run()
    slow = {item for item, judged in final.items() if judged.outcome is Outcome.FAIL}
    assert slow == {f"{UNITS[1].cell.id}@2"}
    assert {record.item for record in kept if record.again} == slow
    assert [text for text in planned.opened if "again" in text] == [
        f"{UNITS[1].cell.id} {n} again" for n in range(1, 6)
    ]


def test_a_fail_that_does_not_repeat_is_undecided(tmp_path: Path) -> None:
    course, _ = course_of(tmp_path, lambda item, again: 0.0 if again else one_is_slow(item, again))
    final = course.run()
    assert outcomes(final) == {Outcome.PASS, Outcome.INCONCLUSIVE}
    assert any("suspect the machine" in judged.sentence for judged in final.values())


def test_the_same_code_that_is_slower_twice_is_a_slow_machine_and_no_regression(tmp_path: Path) -> None:
    sides = {"A": A, "B": replace(B, code=A.code)}
    final = course_of(tmp_path, one_is_slow, sides=sides)[0].run()
    assert Outcome.FAIL not in outcomes(final)
    assert any("the machine is slower and not the engine" in judged.sentence for judged in final.values())
    changed = course_of(tmp_path, one_is_slow, sides=sides, artefacts={"graph": "2"})[0].run()
    assert Outcome.FAIL in outcomes(changed)


def test_a_wide_spread_takes_all_looks_and_then_stays_undecided(tmp_path: Path) -> None:
    course, planned = course_of(tmp_path, lambda item, again: 0.0198, spread=0.02)
    assert Outcome.INCONCLUSIVE in outcomes(course.run())
    assert len([text for text in planned.opened if "again" not in text]) <= 2 * LookPlan().pairs[-1]
    assert max(map(len, course.samples.values())) == LookPlan().pairs[-1]


def test_a_side_that_dies_costs_its_cell_alone_and_leaves_no_verdict_on_its_time(tmp_path: Path) -> None:
    course, planned = course_of(tmp_path, lambda item, again: 0.0)
    whole = planned.measure

    def dies(unit: Unit, bucket: int) -> PairRecord:
        if unit is UNITS[0] and planned.number == 3:
            raise SideFailed(B, Fate.CRASHED, "the process was killed by SIGSEGV")
        return whole(unit, bucket)

    planned.measure = dies  # type: ignore[method-assign]
    final = course.run()
    assert {item.rpartition("@")[0] for item in final} == {UNITS[1].cell.id}
    record = lane_record(course.cells[UNITS[0].cell.id], course, final, [])
    assert (record.fate, record.gates, record.latency) == (Fate.CRASHED, [], [])
    assert "candidate v2 (bbbbbbbbbbbb): the process was killed by SIGSEGV" in record.reason


def test_a_revision_without_an_engine_starts_no_process(tmp_path: Path) -> None:
    sides = {"A": replace(A, missing="it has no atom_impl/"), "B": B}
    course, planned = course_of(tmp_path, lambda item, again: 0.0, sides=sides)
    assert course.run() == {}
    assert planned.opened == []
    assert {cell.failure.fate for cell in course.cells.values() if cell.failure} == {Fate.UNSUPPORTED}


@pytest.mark.parametrize("kill_at", [1, 4, 7, 15, 21, 23])
def test_a_comparison_that_was_killed_goes_on_and_measures_nothing_twice(tmp_path: Path, kill_at: int) -> None:
    """Ten pairs of two buckets decide it, and five more confirm the slow one: 20 records and 5."""
    kept: list[PairRecord] = []

    def keep(record: PairRecord) -> None:
        kept.append(record)
        if len(kept) == kill_at:
            raise KeyboardInterrupt

    course, _ = course_of(tmp_path, one_is_slow)
    course.keep = keep
    with pytest.raises(KeyboardInterrupt):
        course.run()
    again, planned = course_of(tmp_path, one_is_slow, kept=kept)
    again.restore(kept)
    final = again.run()
    assert {item for item, judged in final.items() if judged.outcome is Outcome.FAIL} == {f"{UNITS[1].cell.id}@2"}
    measured = [(record.item, record.number, record.again) for record in kept]
    assert len(measured) == len(set(measured))
    assert 25 <= len(kept) <= 28  # a pair that was cut short is made up for by one more
    assert all(cell.opened for cell in again.cells.values())
    assert planned.opened


def test_a_comparison_that_was_killed_before_its_verdict_needs_no_further_pair(tmp_path: Path) -> None:
    kept: list[PairRecord] = []
    final = course_of(tmp_path, one_is_slow, kept=kept)[0].run()
    again, planned = course_of(tmp_path, one_is_slow)
    again.restore(kept)
    assert again.run() == final
    assert planned.opened == []
    assert again.versions == planned.versions


@pytest.mark.parametrize(
    ("change", "gate", "status", "fate"),
    [
        (0.0, "latency.compare.1", Status.PASS, Fate.MEASURED),
        (0.05, "latency.compare.1", Status.FAIL, Fate.SLOWER),
        (-0.05, "unaccepted.step_time.1", Status.FAIL, Fate.FASTER),
    ],
)
def test_a_decided_cell_becomes_a_record_with_its_gates(
    tmp_path: Path, change: float, gate: str, status: Status, fate: Fate
) -> None:
    kept: list[PairRecord] = []
    course, _ = course_of(tmp_path, lambda item, again: change, kept=kept, artefacts={"graph": "2"})
    final = course.run()
    record = lane_record(course.cells[UNITS[0].cell.id], course, final, kept)
    gates = {found.gate: found for found in record.gates}
    assert (record.fate, gates[gate].status) == (fate, status)
    assert gates["latency.artefacts"].message == "these differ between the sides: graph"
    assert {latency.median_us for latency in record.latency} == {2.0}
