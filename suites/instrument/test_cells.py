"""A cell's name is how history finds it again: an axis that was added later once renamed two years of results."""

from __future__ import annotations

import pytest

from harness.cells import DEFAULTS, Cell, find_cell

IDS = [
    "ladder=1-2-4",
    "level=3,mode=TR_HYBRID,ladder=1-2-4",
    "level=3,mode=FULL,ladder=1-2-4",
    "level=3,mode=FULL,workload=prefill,ladder=1-2-4",
    "level=3,mode=FULL_DECODE_ONLY,ladder=1-2-4",
]


def test_defaults_are_left_out_of_the_name() -> None:
    spelled_out = Cell.of(engine="atom_impl", level=0, mode="NONE", workload="decode", ladder=[1, 2])
    assert spelled_out == Cell.of(ladder=(1, 2))
    assert spelled_out.id == "ladder=1-2"
    assert Cell.of().id == "default"


def test_the_name_does_not_depend_on_the_order_in_which_axes_were_given() -> None:
    assert Cell.of(mode="FULL", level=3).id == Cell.of(level=3, mode="FULL").id == "level=3,mode=FULL"


def test_a_cell_that_went_through_json_is_the_same_cell() -> None:
    cell = Cell.of(level=3, ladder=[1, 2, 4])
    assert Cell.of(**{name: list(v) if isinstance(v, tuple) else v for name, v in cell.axes}) == cell
    assert set(cell.as_dict()) == set(DEFAULTS)


def test_an_unknown_axis_is_refused_with_the_axes_that_exist() -> None:
    with pytest.raises(ValueError, match=r"unknown axis 'colour'; the axes are engine, model, level"):
        Cell.of(colour="red")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (IDS[1], IDS[1]),
        ("mode=TR_HYBRID", IDS[1]),
        ("level=0", IDS[0]),
        ("level=3,mode=FULL,workload=decode", IDS[2]),
        ("ladder=1,2,4,level=0", IDS[0]),
        ("prefill", IDS[3]),
        ("DECODE_ONLY", IDS[4]),
    ],
)
def test_a_cell_is_found_by_its_axes_or_a_piece_of_its_name(query: str, found: str) -> None:
    assert find_cell(query, IDS) == found


def test_an_ambiguous_name_lists_the_cells_that_it_fits_and_no_others() -> None:
    with pytest.raises(ValueError, match="'level=3,mode=FULL' fits 2 cells") as error:
        find_cell("level=3,mode=FULL", IDS)
    assert str(error.value).split("\n  ")[1:] == IDS[2:4]


def test_a_name_that_fits_nothing_lists_every_cell() -> None:
    with pytest.raises(ValueError, match="no cell fits 'level=7'") as error:
        find_cell("level=7", IDS)
    assert str(error.value).split("\n  ")[1:] == IDS
