"""A tuple mode's members are bare integers, so a helper that forgets to wrap them again answers `2 is FULL` with False,
and a step that should have replayed a graph runs eagerly with every test green. Hence the whole truth table.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def api(engine: str) -> ModuleType:
    return importlib.import_module(f"{engine}.config")


# mode: value, decode, mixed, separate routine, has full graphs, uses TR_HYBRID, highest
TRUTH = {
    "NONE": (0, "NONE", "NONE", False, False, False, "NONE"),
    "TR_HYBRID": (1, "TR_HYBRID", "TR_HYBRID", False, False, True, "TR_HYBRID"),
    "FULL": (2, "FULL", "FULL", False, True, False, "FULL"),
    "FULL_DECODE_ONLY": ((2, 0), "FULL", "NONE", True, True, False, "FULL"),
    "FULL_AND_TR_HYBRID": ((2, 1), "FULL", "TR_HYBRID", True, True, True, "FULL"),
}


def test_the_modes_are_the_five_of_the_guide_with_their_values(api: ModuleType) -> None:
    assert {mode.name: mode.value for mode in api.CUDAGraphMode} == {name: row[0] for name, row in TRUTH.items()}


@pytest.mark.parametrize("name", TRUTH)
def test_the_six_helpers_follow_the_truth_table(api: ModuleType, name: str) -> None:
    mode = api.CUDAGraphMode[name]
    _, decode, mixed, separate, full, hybrid, highest = TRUTH[name]
    assert mode.decode_mode() is api.CUDAGraphMode[decode]
    assert mode.mixed_mode() is api.CUDAGraphMode[mixed]
    assert mode.separate_routine() is separate
    assert mode.has_full_cudagraphs() is full
    assert mode.uses_tr_hybrid() is hybrid
    assert mode.max_cudagraph_mode() is api.CUDAGraphMode[highest]


@pytest.mark.parametrize("name", TRUTH)
def test_a_mode_is_found_by_its_name(api: ModuleType, name: str) -> None:
    assert api.CUDAGraphMode.from_name(name) is api.CUDAGraphMode[name]


@pytest.mark.parametrize("name", ["PIECEWISE", "full", "", "value", "__class__"])
def test_an_unknown_name_is_an_error_that_lists_every_choice(api: ModuleType, name: str) -> None:
    with pytest.raises(ValueError, match="cudagraph_mode") as caught:
        api.CUDAGraphMode.from_name(name)
    assert repr(name) in str(caught.value)
    assert all(choice in str(caught.value) for choice in TRUTH)


def test_the_levels_are_four_plain_integers(api: ModuleType) -> None:
    level = api.CompilationLevel
    named = [level.NO_COMPILATION, level.DYNAMO_AS_IS, level.DYNAMO_ONCE, level.PIECEWISE]
    assert named == [0, 1, 2, 3]
    assert all(type(value) is int for value in named)
