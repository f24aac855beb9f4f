"""A suite file without its crashed tests counts as green, and a summary cut at its fiftieth row hid the regressions.

Markdown and JUnit are held to the run: every declared cell, the right counts, and red whenever the exit code is.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as xml

import junitparser
import msgspec
import pytest

from harness.records import CellVerdict, Fate, Status
from harness.report.junit import render_junit, write_junit
from harness.report.markdown import plain, render_markdown, write_markdown
from harness.store import RunData
from suites.instrument import report_runs
from suites.instrument.report_runs import STALE_CELL, gate, sound_run, with_lane, with_verdict


def suite(run: RunData) -> xml.Element:
    found = xml.fromstring(render_junit(run).encode()).find("testsuite")
    assert found is not None
    return found


def case(run: RunData, name: str) -> xml.Element:
    return next(case for case in suite(run).iter("testcase") if case.get("name") == name)


@pytest.mark.parametrize("name", ["sound_run", "failed_run", "interrupted_run", "wide_run"])
def test_junit_counts_agree_with_its_cases_and_every_cell_is_one(name: str, tmp_path: Path) -> None:
    run = getattr(report_runs, name)()
    path = tmp_path / "report.xml"
    write_junit(run, path)
    (read,) = junitparser.JUnitXml.fromfile(str(path))
    stated = (read.tests, read.failures, read.errors, read.skipped)
    read.update_statistics()
    assert stated == (read.tests, read.failures, read.errors, read.skipped)
    assert {c.name for c in read} == {*run.header.cells, "verdict"}


def test_junit_tells_failures_errors_and_skips_apart() -> None:
    found = suite(report_runs.failed_run())
    assert [found.get(k) for k in ("tests", "failures", "errors", "skipped")] == ["13", "3", "1", "2"]
    run = report_runs.failed_run()
    failure = case(run, STALE_CELL).find("failure")
    assert failure is not None
    assert failure.get("type") == "wrong"
    assert report_runs.STALE in (failure.text or "")
    error = case(run, "level=3,mode=FULL,ladder=1-2-4").find("error")
    assert error is not None
    assert "line 118 in capture_end" in (error.text or "")
    skipped = case(run, "mode=FULL,workload=prefill,ladder=1-2-4").find("skipped")
    assert skipped is not None
    assert "prefill is eager under FULL" in skipped.get("message", "")


@pytest.mark.parametrize("fate", list(Fate))
def test_junit_has_an_outcome_for_every_fate_and_only_measured_passes(fate: Fate) -> None:
    run = sound_run()
    cell = run.header.cells[0]
    verdict = report_runs.verdict(run.header, {cell: CellVerdict(cell=cell, fate=fate, reason="because")})
    outcomes = {child.tag for child in case(RunData(run.header, run.lanes, verdict), cell)} - {"system-out"}
    assert len(outcomes) == (fate is not Fate.MEASURED)


@pytest.mark.parametrize("exit_code", [1, 2, 3, 4, 5])
def test_junit_is_red_whenever_the_exit_code_is_not_zero(exit_code: int) -> None:
    run = with_verdict(sound_run(), exit_code=exit_code)
    assert case(run, "verdict").find("failure") is not None
    assert case(sound_run(), "verdict").find("failure") is None


def test_junit_of_an_interrupted_run_is_red() -> None:
    run = report_runs.interrupted_run()
    assert case(run, "verdict").find("error") is not None
    assert suite(run).get("errors") == "8"


def test_junit_of_a_pass_without_a_figure_is_red() -> None:
    run = with_lane(sound_run(), 0, gates=[gate("G3", measured=float("nan"), threshold=2.0)])
    failure = case(run, run.header.cells[0]).find("failure")
    assert failure is not None
    assert "without a finite figure" in failure.get("message", "")


def test_junit_carries_the_evidence_of_a_pass() -> None:
    out = case(sound_run(), STALE_CELL).findtext("system-out") or ""
    assert "pass G3 compiler, float32 lane [1.311 against 4]" in out
    assert "again: harness run --profile quick" in out


def test_junit_stays_xml_whatever_a_worker_printed() -> None:
    run = report_runs.failed_run()
    nasty = "]]>\x00\x1b[31m<&\ud800\ufffe"
    lanes = [msgspec.structs.replace(lane, output_tail=nasty, stack=nasty, reason=nasty) for lane in run.lanes]
    assert suite(RunData(run.header, lanes, run.verdict)).get("errors") == "1"


@pytest.mark.parametrize("name", ["sound_run", "failed_run", "interrupted_run", "wide_run"])
def test_markdown_has_a_row_for_every_declared_cell(name: str, tmp_path: Path) -> None:
    run = getattr(report_runs, name)()
    write_markdown(run, tmp_path / "summary.md")
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| L\d ", text, re.MULTILINE)) == len(run.header.cells)


def test_markdown_begins_with_the_verdict_and_the_worst_facts() -> None:
    text = render_markdown(report_runs.failed_run())
    assert text.startswith("## ✗ FAIL: 3 of 12 cells\n\n**Exit code 1**: something is wrong")
    assert text.index("1. **wrong, G1 recording**") < text.index("2. **crashed, in capture**") < text.index("| cell |")
    assert "no baseline, so not gated" in text


def test_every_markdown_table_row_has_as_many_columns_as_its_head() -> None:
    run = report_runs.failed_run()
    lanes = [msgspec.structs.replace(lane, reason="a | b\nc `d` <img src=x> *e*") for lane in run.lanes]
    assert run.verdict is not None
    cells = [CellVerdict(cell=c.cell, fate=c.fate, reason="a | b\nc `d` <img src=x> *e*") for c in run.verdict.cells]
    verdict = msgspec.structs.replace(run.verdict, cells=cells)
    text = render_markdown(RunData(run.header, lanes, verdict))
    assert "<img" not in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}) == 1


def test_markdown_text_has_no_markup_of_its_own() -> None:
    assert plain("- a_b [c](d) `e` | <b>&\nf") == "\\- a\\_b \\[c\\](d) \\`e\\` \\| &lt;b>&amp; f"


def test_markdown_of_an_interrupted_run_and_of_a_contradiction_says_so() -> None:
    assert render_markdown(report_runs.interrupted_run()).startswith("## ? INCOMPLETE: 13 of 20 units")
    hollow = with_lane(sound_run(), 0, gates=[gate("G3", Status.PASS, measured=None, threshold=2.0)])
    text = render_markdown(hollow)
    assert text.startswith("## ✗ PASS")
    assert "**the record contradicts itself**" in text
