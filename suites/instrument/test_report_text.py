"""A log that ends in three hundred green lines, with the one failure far above, is read as a pass.

These tests read the terminal output as a person does: at 80 columns, from a pipe, with square brackets in the messages.
"""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from harness.errors import UsageError
from harness.records import Fate, Status
from harness.report.text import explain, print_table
from harness.store import RunData
from suites.instrument import report_runs
from suites.instrument.report_runs import STALE_CELL, gate, sound_run, timed, with_lane, with_verdict

CRASHED_CELL = "level=3,mode=FULL,ladder=1-2-4"


def table(run: RunData, width: int = 80, *, tty: bool = False) -> str:
    stream = io.StringIO()
    print_table(run, Console(file=stream, width=width, force_terminal=tty))
    return stream.getvalue()


def explanation(run: RunData, cell: str, *, tty: bool = False) -> str:
    stream = io.StringIO()
    explain(run, cell, Console(file=stream, width=80, force_terminal=tty))
    return stream.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", ["sound_run", "failed_run", "interrupted_run"])
def test_a_pipe_gets_plain_text_of_80_columns(name: str) -> None:
    text = table(getattr(report_runs, name)())
    assert "\x1b" not in text
    assert not re.search("[─│╭╮╰╯]", text)
    assert max(map(len, text.splitlines())) <= 80


def test_every_cell_has_a_row_with_its_fate() -> None:
    text = table(report_runs.failed_run())
    rows = re.findall(r"^(L\d \w+) +[✓✗?·] ([\w-]+)", text, re.MULTILINE)
    assert len(rows) == 12
    assert ("L3 TR_HYBRID", "wrong") in rows
    assert ("L3 FULL", "crashed") in rows
    assert rows.count(("L3 FULL", "unsupported")) == 1


def test_the_verdict_is_the_last_thing_printed() -> None:
    text = table(report_runs.failed_run())
    end = words(text[text.index("FAIL: 3 of 12 cells") :])
    assert "exit code 1: something is wrong, crashed, hung, downgraded or regressed" in end
    assert "units: 20 expected = 20 executed = 20 stored = 20 reported" in end
    assert "no baseline, so not gated: step time" in end
    assert end.endswith("closed form.")


def test_step_times_are_medians_with_quartiles_and_a_unit() -> None:
    text = table(sound_run(), width=120)
    assert "step time of arm R in ms: median [quartiles] by bucket" in text
    assert re.search(r"^L0 NONE .*\d\d\.\d \[\d\d\.\d–\d\d\.\d\]", text, re.MULTILINE)


def test_failures_stand_above_the_verdict_worst_first_with_the_command_to_look_closer() -> None:
    text = table(report_runs.failed_run())
    places = [text.index(w) for w in ("1. ✗ wrong, G1 recording", "2. ✗ crashed, in capture", "3. ✗ cost-changed")]
    assert places == sorted(places)
    assert f"harness explain {STALE_CELL}" in text
    assert report_runs.STALE in words(text)


def test_a_message_with_square_brackets_is_printed_as_it_is() -> None:
    run = report_runs.failed_run()
    odd = gate("G1", Status.FAIL, "rows [0, 2] differ [red]not red[/red] [/]")
    number = next(i for i, lane in enumerate(run.lanes) if lane.cell == STALE_CELL)
    broken = with_lane(run, number, gates=[odd])
    for text in (table(broken, tty=True), explanation(broken, STALE_CELL)):
        assert "rows [0, 2] differ [red]not red[/red] [/]" in words(text)


def test_an_empty_measurement_is_a_word_and_not_a_zero() -> None:
    run = with_lane(sound_run(), 0, latency=[timed("R", 1, []), timed("R", 2, [1.0, float("inf"), 2.0])])
    text = table(run, width=120)
    row = next(line for line in text.splitlines() if line.startswith("L0 NONE"))
    assert "no samples" in row
    assert "not finite" in row
    assert row.split()[2] == "✗"


def test_an_interrupted_run_is_incomplete_in_the_terminal_too() -> None:
    text = words(table(report_runs.interrupted_run()))
    assert "? INCOMPLETE: 13 of 20 units have no record exit code 3" in text
    assert "the same command resumes it" in text


def test_a_contradiction_is_printed_before_the_verdict() -> None:
    text = table(with_verdict(report_runs.failed_run(), exit_code=0, title="PASS"))
    assert text.index("The record contradicts itself") < text.index("✗ PASS")


def test_a_terminal_gets_a_panel_around_the_verdict() -> None:
    text = table(sound_run(), tty=True)
    assert "╭" in text
    assert "✓ PASS" in text


def test_an_explanation_holds_every_gate_with_its_figure_and_limit() -> None:
    run = report_runs.failed_run()
    text = words(explanation(run, STALE_CELL))
    for lane in (lane for lane in run.lanes if lane.cell == STALE_CELL):
        for result in lane.gates:
            assert result.message in text
    assert "✗ fail G1 recording measured 3, limit 0" in text
    assert "at arm R, bucket 4, step 5, row 2, hidden: 17 elements" in text
    assert "likely = STALE" in text
    assert "G3 compiler measured 1.311, limit 4" in text
    assert "closed.copies.output_bytes counted 4,608, closed form 4,608" in text
    assert "topology c0ffee12ab90" in text
    assert "bucket 4 R" in text
    assert "harness run --profile quick --device cpu --level 3 --mode TR_HYBRID --workload decode --fresh" in text


def test_an_explanation_puts_what_failed_first() -> None:
    text = explanation(report_runs.failed_run(), STALE_CELL)
    assert text.index("G1 recording") < text.index("G0 repeat")


def test_a_crash_is_explained_by_its_phase_stack_and_last_output() -> None:
    text = explanation(report_runs.failed_run(), CRASHED_CELL)
    assert "Ended in phase capture" in text
    assert 'File "region_graph.py", line 118 in capture_end' in text
    assert "capturing bucket 2: ..." in text
    assert "none was recorded" in text


def test_a_missing_lane_is_named() -> None:
    run = report_runs.interrupted_run(kept=1)
    assert "the float32 lane left no record" in explanation(run, run.header.cells[0])


def test_a_cell_that_was_only_declared_says_why() -> None:
    text = words(explanation(sound_run(), "mode=FULL,workload=prefill,ladder=1-2-4"))
    assert f"· {Fate.UNSUPPORTED.value}: prefill is eager under FULL; measured in the cell with mode NONE" in text


def test_an_unknown_cell_is_answered_with_the_run_s_cells() -> None:
    with pytest.raises(UsageError, match="has no cell 'level=9'") as caught:
        explain(sound_run(), "level=9", Console(file=io.StringIO()))
    assert STALE_CELL in str(caught.value)
    assert caught.value.exit_code == 2
