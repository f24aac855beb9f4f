"""A report that scrolls sideways on a phone, fades in the dark or loses its evidence in print is not read.

String checks cannot see any of that, so these tests lay the page out in a real browser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.report.html import render_html
from harness.store import RunData
from suites.instrument import report_runs
from suites.instrument.browser import chromium
from suites.instrument.browser.measure import measure

RUNS: list[Callable[[], RunData]] = [report_runs.failed_run, report_runs.interrupted_run]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("make", RUNS, ids=lambda make: make.__name__)
def test_the_page_fits_and_every_word_can_be_read(
    make: Callable[[], RunData], width: int, dark: bool, tmp_path: Path
) -> None:
    found = measure(render_html(make()), tmp_path, width, dark=dark)
    assert found.view_px == width
    assert found.texts > 2000
    assert found.page_px <= width
    assert found.wide == []
    assert found.faint == []
    assert found.small == []


def test_the_measurement_itself_sees_a_page_that_is_too_wide_faint_and_small(tmp_path: Path) -> None:
    page = (
        '<!doctype html><body style="background:#fff"><p style="width:900px;color:#bbb;font-size:8px">'
        "cannot be read<b>shown for length: " + "long " * 200 + "</b></p>"
    )
    found = measure(page, tmp_path, 375, dark=False)
    assert found.page_px > 375
    assert found.wide
    assert found.faint
    assert found.small


def test_paper_shows_what_the_screen_keeps_closed(tmp_path: Path) -> None:
    page = render_html(report_runs.failed_run())
    opened = re.sub(r"<details(?![^>]* open)", "<details open", page)
    without = re.sub(
        r"<details class=\"cell\".*?</details>\s*(?=<details class=\"cell\"|<h2)", "", page, flags=re.DOTALL
    )
    pages = {
        name: _printed_pages(text, tmp_path / f"{name}.html")
        for name, text in (("as_is", page), ("opened", opened), ("without", without))
    }
    assert pages["as_is"] == pages["opened"]
    assert pages["as_is"] > pages["without"] >= 1


def _printed_pages(text: str, page: Path) -> int:
    page.write_text(text, encoding="utf-8")
    pdf = page.with_suffix(".pdf")
    chromium.print_pdf(page, pdf)
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf.read_bytes()))


def test_a_picture_of_the_page_can_be_taken(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_html(report_runs.sound_run()), encoding="utf-8")
    chromium.screenshot(page, tmp_path / "report.png", 1280, 900)
    header = (tmp_path / "report.png").read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1280, 900)
