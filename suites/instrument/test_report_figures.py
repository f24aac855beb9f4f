"""A dashboard that turned a missing metric into 0 showed perfect agreement where nothing had been compared.

These tests hold every figure and plot to saying what is absent, not a number or off the scale.
"""

from __future__ import annotations

import math
import re
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report import figures
from harness.report.figures import TimeUnit
from harness.report.svg import Axis, staircase, strip_plot, ticks
from suites.instrument.report_runs import latency, timed

MS = TimeUnit("ms", 1e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (0, "0"),
        (0.0, "0"),
        (1234567, "1,234,567"),
        (1.31123, "1.311"),
        (2.1e-6, "2.1e-06"),
        (-3, "-3"),
    ],
)
def test_a_figure_says_what_it_is(value: float | None, text: str) -> None:
    assert figures.figure(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (3 * 2**20, "3.00 MiB"), (2**50, "1024 TiB"), (None, "–")],
)
def test_bytes_are_in_the_largest_unit_that_leaves_a_whole(value: float | None, text: str) -> None:
    assert figures.nbytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12 ms"),
        (0.8, "0.80 s"),
        (14.21, "14.2 s"),
        (379, "6 min 19 s"),
        (7265, "2 h 1 min"),
        (math.nan, "NaN"),
    ],
)
def test_a_duration_reads_as_people_say_it(value: float, text: str) -> None:
    assert figures.seconds(value) == text


def test_the_unit_leaves_the_smallest_time_a_whole_part() -> None:
    assert TimeUnit.fitting([950.0, 31_000.0]).name == "µs"
    assert TimeUnit.fitting([1_050.0, 31_000.0]).name == "ms"
    assert TimeUnit.fitting([2e6]).name == "s"
    assert TimeUnit.fitting([]).name == "µs"
    assert TimeUnit.fitting([math.nan, 0.0, 5e3]).name == "ms"


def test_a_median_and_its_quartiles_have_as_many_decimals() -> None:
    assert MS.spread(101_240.0, 99_660.0, 101_900.0) == "101 [100–102]"
    assert MS.spread(9_994.0, 9_900.0, 10_100.0) == "9.99 [9.90–10.10]"
    assert MS.spread(math.nan, math.inf, 1.0) == "NaN [inf–0.00]"


def test_control_characters_and_terminal_escapes_are_taken_out() -> None:
    assert figures.clean("\x1b[1;31mred\x1b[0m\x1b]0;title\x07 and\ttab\r\nline\x00") == "red and\ttab\nline\ufffd"


@given(st.text())
def test_clean_text_is_legal_in_xml(text: str) -> None:
    assert all(c in "\t\n\r" or (ord(c) >= 0x20 and not 0xD800 <= ord(c) < 0xE000) for c in figures.clean(text))


def test_a_nested_record_is_flat_and_keeps_its_empty_branches() -> None:
    tree = {"a": {"b": 1, "c": {}}, "list": [1, 2.5], "none": None, "pool_bytes": 4096, "off": False, "empty": ""}
    assert figures.flat(tree) == [
        ("a.b", "1"),
        ("a.c", "none"),
        ("list", "1, 2.5"),
        ("none", "–"),
        ("pool_bytes", "4,096 (4.00 KiB)"),
        ("off", "no"),
        ("empty", "–"),
    ]


@given(
    st.floats(-1e9, 1e9, allow_nan=False),
    st.floats(1e-6, 1e9, allow_nan=False),
    st.integers(2, 8),
)
def test_ticks_are_few_ascending_and_within_the_range(low: float, span: float, most: int) -> None:
    high = low + span
    marks = ticks(low, high, most)
    assert len(marks) <= most
    assert marks == sorted(marks)
    assert all(low - span * 1e-6 <= mark <= high + span * 1e-6 for mark in marks)


def test_an_axis_of_one_value_does_not_divide_by_zero() -> None:
    assert Axis(5.0, 5.0, 10.0, 20.0).at(5.0) == 10.0


def test_a_strip_plot_has_a_dot_for_every_sample() -> None:
    steps = [x for x in latency("decode") if x.bucket == 4]
    paths = re.findall(r'class="dots" d="([^"]*)"', str(strip_plot(steps, MS)))
    assert [path.count("h0") for path in paths] == [15, 15, 15]


def test_a_stalled_step_is_marked_at_the_edge_and_does_not_squeeze_the_rest() -> None:
    usual = [30_000.0 + 10 * n for n in range(14)]
    plot = str(strip_plot([timed("R", 4, [*usual, 900_000.0])], MS))
    (dots,) = re.findall(r'class="dots" d="([^"]*)"', plot)
    assert dots.count("h0") == 14
    assert "1 slower, up to 900 ms" in plot
    places = list(accumulate(float(x) for x in re.findall(r"m(-?\d+) ", dots)))  # each from the one before
    assert max(places) - min(places) > 10


def test_an_arm_without_samples_is_not_drawn_as_zero() -> None:
    empty = timed("R", 4, [])
    assert "No sample was taken" in str(strip_plot([empty], MS))
    assert "No sample was taken" in str(staircase([empty], [4], MS, 1.0))


def test_a_recorded_bucket_is_a_stair_from_the_bucket_below_it() -> None:
    plot = str(staircase([x for x in latency("decode") if x.arm == "R"], [1, 2, 4], MS, 60_000.0))
    (line,) = re.findall(r'class="line" d="([^"]*)"', plot)
    starts = [float(x) for x in re.findall(r"M([\d.]+) ", line)]
    ends = [float(x) for x in re.findall(r"H([\d.]+)", line)]
    assert len(starts) == len(ends) == 3
    assert starts[1:] == ends[:-1]


def test_without_recorded_buckets_nothing_between_the_measured_rows_is_claimed() -> None:
    plot = str(staircase(latency("decode"), [], MS, 60_000.0))
    for line in re.findall(r'class="line" d="([^"]*)"', plot):
        assert "H" not in line
        assert line.count("L") == 2
