"""A batch between two buckets, and the part of a step that grew, were in the record and on no page."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from harness.records import Fate
from harness.report.html import render_html
from harness.report.parts import anatomy, copies, edge_plot
from harness.report.view import cell_views
from suites.instrument.report_runs import (
    lane_record,
    parts_of_a_step,
    quick_cells,
    sound_run,
    wide_run,
    with_lane,
    with_verdict,
)


def cells() -> Any:
    return cell_views(sound_run())


def recorded() -> Any:
    return next(cell for cell in cells() if cell.axes["mode"] == "FULL" and cell.axes["workload"] == "decode")


def boxes(path: str, plot: str, kind: str) -> list[tuple[float, float, float]]:
    """(left, top, bottom) of every box of one class, in one arm's group."""
    group = plot[plot.index(f'class="arm-{kind}"') :].split("</g>")[0]
    found = re.search(rf'class="{path}" d="([^"]*)"', group)
    assert found
    return [
        (float(left), float(top), float(bottom))
        for left, top, bottom in re.findall(r"M([\d.]+) ([\d.]+)H[\d.]+V([\d.]+)", found[1])
    ]


def test_every_measured_batch_is_a_column_and_what_ran_eagerly_stands_apart() -> None:
    plot = str(edge_plot(recorded())["plot"])
    assert len(boxes("column", plot, "R")) == 4
    assert len(boxes("column", plot, "E")) == 1
    lefts = [left for left, _, _ in boxes("column", plot, "R")]
    assert lefts == sorted(lefts)


def test_what_pad_rows_take_is_drawn_in_proportion() -> None:
    plot = str(edge_plot(recorded())["plot"])
    (pad,) = boxes("padding", plot, "R")
    live = next(box for box in boxes("column", plot, "R") if box[0] == pad[0])
    assert pad[2] == live[1]
    assert (pad[2] - pad[1]) / (live[2] - pad[1]) == pytest.approx(0.25, abs=0.01)


def test_the_parts_of_a_step_stand_in_its_order_and_in_proportion() -> None:
    found = anatomy(recorded())
    assert found["shown"] == ["dispatch", "staging", "replay", "regions", "output"]
    bar = re.findall(r'class="part-(\w+)" d="M([\d.]+) [\d.]+H([\d.]+)', str(found["plot"]))[:5]
    assert [name for name, _, _ in bar] == found["shown"]
    width = {name: float(end) - float(begin) for name, begin, end in bar}
    assert width["replay"] / width["regions"] == pytest.approx(24_000 / 4_100, rel=0.03)


@pytest.mark.parametrize(
    "counters", [{}, {"staircase": "?", "anatomy": 3}, {"staircase": [{"batch": 1}], "anatomy": {}}]
)
def test_a_record_without_parts_or_with_broken_ones_draws_none(counters: dict[str, Any]) -> None:
    lane = lane_record(quick_cells()[0], counters=counters)
    (cell,) = [view for view in cell_views(with_lane(sound_run(), 0, counters=counters)) if view.id == lane.cell]
    assert edge_plot(cell) == {}
    assert anatomy(cell) == {}


def test_copies_stand_beside_the_least_time_of_their_bytes_and_what_a_profile_saw() -> None:
    rows = copies(recorded())
    assert rows[:2] == [["1", "staging", "5", "4,000", "0.40", "40.00"], ["1", "output", "1", "9,000", "0.90", "–"]]
    assert len(rows) == 2 * 3  # what was not copied takes no row
    page = render_html(sound_run())
    assert "Copies of one step" in page
    assert "bucket 1, floor 13.5 ms" in page
    assert copies(next(cell for cell in cells() if cell.axes["workload"] == "prefill")) == []


def test_a_page_of_many_cells_draws_only_the_red_ones_apart_and_says_where_the_rest_is() -> None:
    run = wide_run()
    number = next(i for i, lane in enumerate(run.lanes) if "staircase" in lane.counters)
    red = with_lane(run, number, fate=Fate.SLOWER)
    assert run.verdict is not None
    cells = [
        msgspec.structs.replace(cell, fate=Fate.SLOWER) if cell.cell == run.lanes[number].cell else cell
        for cell in run.verdict.cells
    ]
    page = render_html(with_verdict(red, cells=cells))
    assert page.count("Parts of a profiled step") == 1
    assert "Batch sizes and parts of a step: <code>harness explain</code>" in page


def test_a_figure_that_is_none_is_left_out_and_the_page_still_stands() -> None:
    broken = parts_of_a_step()
    broken["staircase"][0]["median_us"] = None
    run = sound_run()
    number = next(i for i, lane in enumerate(run.lanes) if "staircase" in lane.counters)
    page = render_html(with_lane(run, number, counters=broken))
    assert "At the buckets' edges" in page
    assert "Parts of a profiled step" in page
