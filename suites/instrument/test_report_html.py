"""A page that loads from a network, swallows a message's angle brackets or leaves a cell out is not evidence.

The page is parsed here and held to the run it was made from.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from harness.errors import UsageError
from harness.records import LaneRecord, RunHeader, Status, Verdict
from harness.report.html import render_html, write_html
from harness.store import RunData
from suites.instrument import report_runs
from suites.instrument.report_runs import STALE_CELL, gate, sound_run, timed, with_lane, with_verdict

PAYLOAD = "<script>alert('x')</script>&\"</style>"
#: Closed by their parent or the next of their kind, so they need no end tag.
OPTIONAL = {"li", "dt", "dd", "tr", "td", "th", "thead", "tbody", "p", "html", "body", "head"}
VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """What a reader finds: texts, ids, links and tags, and whether the tags that must be closed are."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.broken: list[str] = []
        self.feed(source)
        self.close()
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in OPTIONAL:
            return
        if not self.open or self.open.pop() != tag:
            self.broken.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)


RUNS = ["sound_run", "failed_run", "interrupted_run"]


@pytest.mark.parametrize("name", RUNS)
def test_the_page_is_well_formed_and_its_links_lead_somewhere(name: str) -> None:
    page = Page(render_html(getattr(report_runs, name)()))
    assert page.broken == []
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    links = [value for tag, attribute, value in page.attributes if tag == "a" and attribute == "href"]
    assert links
    assert {link.removeprefix("#") for link in links} <= set(page.ids)


@pytest.mark.parametrize("name", RUNS)
def test_the_page_needs_no_network_and_no_script(name: str) -> None:
    source = render_html(getattr(report_runs, name)())
    page = Page(source)
    assert page.tags["script"] == 0
    assert page.tags["img"] == page.tags["iframe"] == page.tags["object"] == 0
    assert not re.search(r"https?:|//[a-z]|@import|url\(", source)
    assert [v for _, name, v in page.attributes if name == "src" or name.startswith("on")] == []
    assert any("default-src 'none'" in value for _, _, value in page.attributes)


@pytest.mark.parametrize("name", [*RUNS, "wide_run"])
def test_every_declared_cell_is_on_the_page(name: str) -> None:
    run = getattr(report_runs, name)()
    page = Page(render_html(run))
    assert set(run.header.cells) <= set(page.texts)
    assert len([i for i in page.ids if i.startswith("cell-")]) == len(run.header.cells)


def test_two_hundred_cells_take_under_two_seconds_and_two_megabytes() -> None:
    run = report_runs.wide_run()
    assert len(run.header.cells) > 200
    render_html(sound_run())  # the template is compiled once a process
    start = time.process_time()
    source = render_html(run)
    assert time.process_time() - start < 2.0
    assert len(source.encode()) < 2_000_000


def test_the_verdict_comes_before_everything_else() -> None:
    run = report_runs.failed_run()
    text = Page(render_html(run)).text
    places = [
        text.index(words)
        for words in (
            "FAIL: 3 of 12 cells",
            "Exit code 1",
            "Worst first",
            report_runs.SEGFAULT,
            "No baseline",
            "Every declared cell",
            "Step time against live rows",
            "Evidence, cell by cell",
            "To run it again",
            "AMD EPYC 9654",
        )
    ]
    assert places[3] < places[4]
    assert [place for i, place in enumerate(places) if i != 3] == sorted(p for i, p in enumerate(places) if i != 3)


def test_without_a_baseline_the_page_says_what_was_not_gated() -> None:
    text = Page(render_html(sound_run())).text
    assert "so these were not gated : step time against an earlier release" in text
    compared = Page(render_html(with_verdict(sound_run(), baseline="baselines/mi300x/2026-11.json"))).text
    assert "not gated" not in compared
    assert "Compared with baselines/mi300x/2026-11.json" in compared


def test_an_interrupted_run_says_so_at_the_top() -> None:
    text = Page(render_html(report_runs.interrupted_run(kept=7))).text
    assert text.index("INCOMPLETE: 13 of 20 units have no record") < 200
    assert "This report is of an unfinished run." in text
    assert "20 expected ≠ 7 executed = 7 stored = 7 reported" in text


def test_a_contradiction_is_at_the_top_and_the_page_is_not_green() -> None:
    source = render_html(with_verdict(report_runs.failed_run(), exit_code=0, title="PASS"))
    assert '<div class="verdict bad">' in source
    assert Page(source).text.index("The record contradicts itself") < 1200


def test_a_crash_shows_its_phase_stack_and_last_output() -> None:
    text = Page(render_html(report_runs.failed_run())).text
    assert "crashed in phase capture : the worker died of signal 11 (SIGSEGV)" in text
    assert 'File "region_graph.py", line 118 in capture_end' in text
    assert "capturing bucket 4: 31 segments" in text
    assert "\x1b" not in text


def test_a_failed_gate_shows_its_figures_place_and_evidence() -> None:
    text = Page(render_html(report_runs.failed_run())).text
    assert f"G1 recording ✗ fail 3 0 {report_runs.STALE} arm R, bucket 4, step 5, row 2, hidden: 17 elements" in text
    assert "likely STALE" in text


def test_what_failed_stands_above_everything_that_passed() -> None:
    run = sound_run()
    failed = gate("G6", Status.FAIL, "a token flipped without an excuse")
    cell = with_lane(RunData(run.header, run.lanes[:2], run.verdict), 1, gates=[*run.lanes[1].gates[1:], failed])
    text = Page(render_html(cell)).text
    assert text.index("float32 lane, float32 G6 tokens ✗ fail") < text.index("every lane G0 repeat ✓ pass")


def test_what_every_lane_found_alike_is_said_once_and_what_differs_for_each() -> None:
    run = sound_run()
    one = RunData(run.header, run.lanes[:2], run.verdict)
    text = Page(render_html(one)).text
    assert text.count("arms E and C gave the same bits twice on all 24 input sets") == 1
    assert text.count("the worst row is 1.31 times as far from float64 as eager's") == 2
    other = with_lane(one, 1, gates=[gate("G0", message="arms E and C gave the same bits once")])
    assert "arms E and C gave the same bits twice on all 24 input sets" in Page(render_html(other)).text
    assert "arms E and C gave the same bits once" in Page(render_html(other)).text


@pytest.mark.parametrize(("measured", "shown"), [(float("nan"), "NaN"), (float("inf"), "inf"), (None, "–")])
def test_a_figure_that_is_none_is_shown_as_such_and_not_as_a_pass(measured: float | None, shown: str) -> None:
    run = with_lane(sound_run(), 0, gates=[gate("G3", measured=measured, threshold=2.0, message="odd")])
    assert f"G3 compiler ✗ no figure {shown} 2 odd" in Page(render_html(run)).text


def test_an_empty_measurement_is_not_shown_as_a_time() -> None:
    run = with_lane(sound_run(), 0, latency=[timed("R", 4, []), timed("E", 4, [1.0, float("inf"), 2.0])])
    text = Page(render_html(run)).text
    assert text.count("not a measurement") == 2
    assert "No sample was taken." in text


def test_a_lane_without_gates_is_not_shown_as_one_that_passed() -> None:
    text = Page(render_html(with_lane(sound_run(), 0, gates=[]))).text
    assert "no gate of it compared anything" in text


def test_a_gate_that_does_not_apply_says_why_and_counts_as_nothing() -> None:
    idle = gate("G1", Status.NOT_APPLICABLE, "mode NONE records nothing")
    run = with_lane(sound_run(), 0, gates=[idle, gate("G3", measured=1.0, threshold=2.0)])
    text = Page(render_html(run)).text
    assert "not-applicable" in text
    assert "mode NONE records nothing" in text


def test_no_text_of_a_record_can_become_markup() -> None:
    """Every free string of the run carries a payload; the page must show all of them and obey none."""
    run = report_runs.failed_run()
    assert run.verdict is not None
    poisoned = RunData(
        header=poison(run.header, RunHeader),
        lanes=[poison(lane, LaneRecord) for lane in run.lanes],
        verdict=poison(run.verdict, Verdict),
    )
    source = render_html(poisoned)
    page = Page(source)
    assert page.tags["script"] == 0
    assert page.tags["style"] == 1
    assert page.broken == []
    assert "alert('x')</script>" not in source
    assert page.text.count("alert('x')") > 300


T = TypeVar("T", bound=msgspec.Struct)


def poison(record: T, kind: type[T]) -> T:
    return msgspec.convert(_poisoned(msgspec.to_builtins(record)), kind)


FIXED = {"type", "status", "fate", "phase"}


def _poisoned(value: Any, name: str = "") -> Any:
    if isinstance(value, str):
        return value if name in FIXED else value + PAYLOAD
    if isinstance(value, list):
        return [_poisoned(item) for item in value]
    if isinstance(value, dict):
        free = name in ("evidence", "counters", "capture", "artefacts", "fingerprint", "engine_revision")
        return {(k + PAYLOAD if free else k): _poisoned(v, "" if free else k) for k, v in value.items()}
    return value


def test_red_cells_are_open_and_green_ones_closed() -> None:
    source = render_html(report_runs.failed_run())
    opened = re.findall(r'<details class="cell" open>.*?id="(cell-\d+)"', source, re.DOTALL)
    cells = report_runs.failed_run().header.cells
    assert {cells[int(anchor.removeprefix("cell-")) - 1] for anchor in opened} == {
        STALE_CELL,
        "level=3,mode=FULL,ladder=1-2-4",
        "mode=FULL,ladder=1-2-4",
    }


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    page = tmp_path / "new" / "report.html"
    write_html(sound_run(), page)
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"report .*file/report\.html cannot be written"):
        write_html(sound_run(), tmp_path / "file" / "report.html")
