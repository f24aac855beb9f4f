"""A comparison script that walked the results it found dropped its crashed configurations, and the release went out.

These tests hold the view to the declared cells, and to saying so where a record contradicts itself.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from harness.cells import Cell
from harness.records import CellVerdict, Fate, LaneRecord, Status
from harness.report.fates import EXIT_MEANINGS, FATE_MEANINGS, Tone, exit_meaning, fate_tone, status_tone
from harness.report.summary import Summary, cell_command, explain_command
from harness.report.view import axes_of, cell_views, matrices
from harness.store import RunData, RunStore, load_run
from harness.verdicts import NO_BASELINE
from suites.instrument import report_runs
from suites.instrument.report_runs import (
    STALE_CELL,
    gate,
    lane_record,
    quick_cells,
    sound_run,
    timed,
    with_lane,
    with_verdict,
)


def test_every_declared_cell_is_in_the_view_even_if_it_left_no_record() -> None:
    run = report_runs.interrupted_run(kept=0)
    views = cell_views(run)
    assert [view.id for view in views] == run.header.cells
    assert {view.fate for view in views} == {Fate.NOT_RUN, Fate.UNSUPPORTED}


def test_a_cell_with_one_lane_missing_is_not_measured() -> None:
    run = report_runs.interrupted_run(kept=1)
    first = cell_views(run)[0]
    assert first.fate is Fate.NOT_RUN
    assert first.missing == ("float32",)
    assert "float32" in first.reason


def test_a_wrong_lane_decides_an_interrupted_cell_before_a_missing_one() -> None:
    run = with_lane(report_runs.interrupted_run(kept=1), 0, fate=Fate.WRONG, reason="rows differ")
    assert cell_views(run)[0].fate is Fate.WRONG


def test_a_sound_run_has_no_doubts_and_no_facts() -> None:
    summary = Summary.of(sound_run())
    assert summary.doubts == []
    assert summary.facts == []
    assert summary.tone is Tone.GOOD
    assert summary.accounting.balanced


def test_a_record_that_was_never_declared_is_shown_and_doubted() -> None:
    run = sound_run()
    stranger = lane_record(quick_cells(levels=(2,))[1])
    summary = Summary.of(RunData(run.header, [*run.lanes, stranger], run.verdict))
    assert stranger.cell in [cell.id for cell in summary.cells]
    assert any("never declared" in doubt and stranger.cell in doubt for doubt in summary.doubts)
    assert summary.tone is Tone.BAD


@pytest.mark.parametrize("measured", [math.nan, math.inf, None])
def test_a_pass_without_a_finite_figure_is_not_shown_as_a_pass(measured: float | None) -> None:
    run = with_lane(sound_run(), 0, gates=[gate("G3", measured=measured, threshold=2.0)])
    cell = Summary.of(run).cells[0]
    assert cell.tone is Tone.BAD
    assert cell.gates[0].word == "no figure"
    assert cell.gates[0].tone is Tone.BAD
    assert cell.passed_count == len(run.lanes[1].gates) - 1  # the sound lane's, less its G7, which reports


def test_a_comparison_of_bits_passes_without_a_figure() -> None:
    run = with_lane(sound_run(), 0, gates=[gate("G1")])
    assert Summary.of(run).cells[0].doubts == ()


def test_a_nan_that_went_through_the_file_is_still_not_a_pass(tmp_path: Path) -> None:
    run = with_lane(sound_run(), 0, gates=[gate("G3", measured=math.nan, threshold=2.0)])
    assert run.verdict is not None
    with RunStore.create(tmp_path, run.header) as store:
        for lane in run.lanes:
            store.append(lane)
        store.append(run.verdict)
    summary = Summary.of(load_run(tmp_path / run.header.run))
    assert summary.cells[0].gates[0].word == "no figure"
    assert any("without a finite figure" in doubt for doubt in summary.doubts)


def test_a_measured_lane_whose_gates_compared_nothing_is_doubted() -> None:
    for gates in ([], [gate("G1", Status.NOT_APPLICABLE)], [gate("G7", Status.REPORT)]):
        cell = Summary.of(with_lane(sound_run(), 0, gates=gates)).cells[0]
        assert cell.tone is Tone.BAD
        assert "no gate of it compared anything" in cell.doubts[0]


def test_a_failed_gate_in_a_measured_cell_is_doubted() -> None:
    run = with_lane(sound_run(), 0, gates=[gate("G1", Status.FAIL, "rows differ")])
    assert any("G1 failed" in doubt for doubt in Summary.of(run).doubts)


@pytest.mark.parametrize("samples", [[], [1.0, math.nan, 2.0]])
def test_times_that_are_empty_or_not_finite_are_doubted(samples: list[float]) -> None:
    run = with_lane(sound_run(), 0, latency=[timed("R", 1, samples)])
    assert any("empty or not finite" in doubt for doubt in Summary.of(run).cells[0].doubts)


def test_a_pass_over_red_cells_is_doubted() -> None:
    run = with_verdict(report_runs.failed_run(), exit_code=0, title="PASS")
    assert any("3 of 12 cells are not green" in doubt for doubt in Summary.of(run).doubts)


def test_a_verdict_that_forgets_a_cell_is_doubted() -> None:
    run = sound_run()
    assert run.verdict is not None
    forgetful = with_verdict(run, cells=run.verdict.cells[1:])
    assert any("does not mention: ladder=1-2-4" in doubt for doubt in Summary.of(forgetful).doubts)


def test_a_pass_whose_numbers_do_not_agree_is_doubted() -> None:
    summary = Summary.of(with_verdict(sound_run(), executed=19))
    assert not summary.accounting.balanced
    assert any("do not agree" in doubt for doubt in summary.doubts)


def test_a_file_that_holds_less_than_the_verdict_claims_is_doubted() -> None:
    run = sound_run()
    summary = Summary.of(RunData(run.header, run.lanes[:-1], run.verdict))
    assert summary.accounting.stored == 20
    assert summary.accounting.recounted == 19
    assert summary.doubts


def test_a_unit_that_was_recorded_twice_is_doubted() -> None:
    run = sound_run()
    summary = Summary.of(RunData(run.header, [*run.lanes, run.lanes[0]], run.verdict))
    assert any("more than once: ladder=1-2-4#serving" in doubt for doubt in summary.doubts)


def test_damaged_lines_are_named() -> None:
    run = sound_run()
    assert "2 damaged lines" in Summary.of(RunData(run.header, run.lanes, run.verdict, 2)).doubts[0]


def test_figures_of_other_probes_than_the_harness_s_are_doubted() -> None:
    run = sound_run()
    header = msgspec.structs.replace(run.header, probes="a stand-in")
    assert "by a stand-in" in Summary.of(RunData(header, run.lanes, run.verdict)).doubts[0]


def test_the_verdict_s_own_words_on_the_baseline_are_not_said_twice() -> None:
    run = with_verdict(sound_run(), reasons=["Every gate passed.", NO_BASELINE])
    assert Summary.of(run).reasons == ["Every gate passed."]


def test_a_cell_s_own_reason_is_a_fact_and_every_other_reason_a_note() -> None:
    run = report_runs.failed_run()
    assert run.verdict is not None
    noted = Summary.of(with_verdict(run, reasons=[*run.verdict.reasons, "Not the whole profile: level 3."]))
    assert len(noted.reasons) == 4
    assert noted.notes == ["Not the whole profile: level 3."]


def test_a_hole_in_the_ladder_is_a_fact_with_its_reason() -> None:
    run = sound_run()
    holed = CellVerdict(cell=STALE_CELL, fate=Fate.DOWNGRADED, reason="a hole in the ladder: requests 5")
    facts = Summary.of(RunData(run.header, run.lanes, report_runs.verdict(run.header, {STALE_CELL: holed}))).facts
    assert [(fact.what, fact.sentence) for fact in facts] == [("downgraded", "a hole in the ladder: requests 5")]


def test_the_worst_facts_come_first_and_a_replay_before_a_copy() -> None:
    facts = Summary.of(report_runs.failed_run()).facts
    assert [(fact.cell.fate, fact.what) for fact in facts] == [
        (Fate.WRONG, "G1 recording"),
        (Fate.CRASHED, "in capture"),
        (Fate.COST_CHANGED, "closed.copies.output"),
    ]
    assert facts[0].sentence == report_runs.STALE


def test_the_same_failure_in_several_cells_is_one_fact() -> None:
    run = sound_run()
    broken = [gate("G1", Status.FAIL, "rows differ"), gate("G6", Status.FAIL, "tokens differ")]
    lanes = [msgspec.structs.replace(lane, gates=broken, fate=Fate.WRONG) for lane in run.lanes]
    fates = {lane.cell: CellVerdict(cell=lane.cell, fate=Fate.WRONG, reason="G1") for lane in lanes}
    facts = Summary.of(RunData(run.header, lanes, report_runs.verdict(run.header, fates))).facts
    assert [(fact.what, fact.again) for fact in facts] == [("G1 recording", 9), ("G6 tokens", 9)]


def test_a_red_cell_without_gates_is_a_fact_with_its_reason() -> None:
    facts = Summary.of(report_runs.interrupted_run()).facts
    assert [(fact.what, fact.again) for fact in facts] == [("not-run", 6)]
    assert "float32" in facts[0].sentence


def test_an_interrupted_run_is_incomplete_with_exit_code_3() -> None:
    summary = Summary.of(report_runs.interrupted_run(kept=7))
    assert summary.title == "INCOMPLETE: 13 of 20 units have no record"
    assert summary.exit_code == 3
    assert summary.tone is Tone.OPEN


def test_a_run_that_was_only_asked_to_measure_is_not_called_interrupted() -> None:
    run = sound_run()
    measured = RunData(msgspec.structs.replace(run.header, kind="run"), run.lanes, None)
    assert Summary.of(measured).title.startswith("NO VERDICT")
    half = RunData(measured.header, run.lanes[:3], None)
    assert Summary.of(half).title.startswith("INCOMPLETE")


def test_every_fate_and_every_exit_code_has_words() -> None:
    assert set(FATE_MEANINGS) == set(Fate)
    assert set(EXIT_MEANINGS) == set(range(6))
    assert "not an exit code" in exit_meaning(17)


def test_only_a_measured_cell_is_green() -> None:
    assert [fate for fate in Fate if fate_tone(fate) is Tone.GOOD] == [Fate.MEASURED]
    assert [status for status in Status if status_tone(status) is Tone.GOOD] == [Status.PASS]


def test_a_cell_id_is_read_back_whatever_its_model_is_called() -> None:
    cell = Cell.of(model="random:tiny?layers=4,seed=0", level=3, ladder=[1, 2, 4])
    axes = axes_of(cell.id)
    assert axes["model"] == "random:tiny?layers=4,seed=0"
    assert (axes["level"], axes["ladder"], axes["mode"], axes["workload"]) == ("3", "1-2-4", "NONE", "decode")


def test_cells_that_differ_in_another_axis_stand_in_different_matrices() -> None:
    run = sound_run(quick_cells(models=("small", "large")))
    tables = matrices(cell_views(run))
    assert [table.title for table in tables] == ["small · ladder 1-2-4", "large · ladder 1-2-4"]
    assert sum(len(table.cells) for table in tables) == len(run.header.cells) == 24


def test_the_command_for_one_cell_names_what_tells_it_apart() -> None:
    summary = Summary.of(sound_run(quick_cells(models=("small", "large"))))
    cell = next(c for c in summary.cells if c.id == "model=large," + STALE_CELL)
    assert cell_command(summary, cell) == (
        "harness run --profile quick --device cpu --model large --level 3 --mode TR_HYBRID --workload decode --fresh"
    )


def test_the_command_for_one_cell_keeps_the_run_s_own_narrowing() -> None:
    run = sound_run()
    command = ["harness", "signoff", "--profile=my profile.toml", "--results", "kept"]
    filters = {"ladder": ["1,2,4"], "dtype": ["float32"], "seed": ["7"]}
    summary = Summary.of(RunData(msgspec.structs.replace(run.header, command=command, filters=filters), run.lanes))
    text = cell_command(summary, summary.cells[0])
    assert "--profile 'my profile.toml'" in text
    assert "--ladder 1,2,4 --dtype float32 --seed 7 --results kept" in text


def test_the_command_that_explains_a_cell_can_be_pasted() -> None:
    summary = Summary.of(sound_run(quick_cells(models=("two words",))))
    assert explain_command(summary.run, summary.cells[0]).startswith("harness explain 'model=two words,ladder=1-2-4'")


def test_lanes_keep_their_records() -> None:
    run = sound_run()
    seen = [lane for cell in cell_views(run) for lane in cell.lanes]
    assert all(isinstance(lane, LaneRecord) for lane in seen)
    assert len(seen) == len(run.lanes)
