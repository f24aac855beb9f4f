"""Every size has a bucket or a stated reason. A ladder built by steps of sixteen left the sizes above its last step
eager, and nobody was told; and a cell that the plan forgot was never missed.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cells import Cell
from harness.coverage import coverage, route
from harness.errors import UsageError
from harness.filters import Filters, narrow
from harness.plan import Plan, batches, make_plan
from harness.profile import MODES, Profile
from harness.profiles import load_profile
from suites.instrument.fake_engine import FakeEngine
from suites.instrument.spine import fake_profile


def plan_for(profile: Profile, device: str = "cpu") -> Plan:
    return make_plan(profile, device, lambda name: FakeEngine())


def quick_on_the_fake() -> Profile:
    return narrow(load_profile("quick"), Filters(engine=["fake"], model=["fake-model"]))


def test_the_quick_profile_is_twelve_cells_of_which_two_are_declared_and_twenty_units() -> None:
    plan = plan_for(quick_on_the_fake())
    assert len(plan.cells) == 12
    assert set(plan.declared.values()) == {"prefill is eager under FULL"}
    assert len(plan.declared) == 2
    assert len(plan.units) == 20
    assert {(unit.lane, unit.dtype) for unit in plan.units} == {("serving", "bfloat16"), ("float32", "float32")}
    assert not {unit.cell.id for unit in plan.units} & set(plan.declared)


def test_a_cell_that_is_served_in_float32_needs_no_second_lane() -> None:
    plan = plan_for(narrow(quick_on_the_fake(), Filters(dtype="float32")))
    assert {(unit.lane, unit.dtype) for unit in plan.units} == {("serving", "float32")}


def test_a_second_gpu_is_served_like_the_first() -> None:
    assert plan_for(quick_on_the_fake(), "cuda:1").units == plan_for(quick_on_the_fake(), "cuda").units


def test_a_device_without_a_serving_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="names no serving dtype for device 'xpu'"):
        plan_for(quick_on_the_fake(), "xpu")


def test_an_unknown_engine_or_model_ends_the_plan_with_the_choices(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path, model='["fake-modle"]')
    with pytest.raises(UsageError, match="unknown model 'fake-modle'; the models are fake-model, damaged-model"):
        plan_for(profile)

    def nobody(name: str) -> FakeEngine:
        raise ValueError(f"unknown engine {name!r}")

    with pytest.raises(UsageError, match="unknown engine 'fake'"):
        make_plan(fake_profile(tmp_path), "cpu", nobody)


def test_an_engine_that_declares_without_a_reason_is_quoted_as_such(tmp_path: Path) -> None:
    silent = SimpleNamespace(supports=lambda cell: SimpleNamespace(ok=False, reason=""))
    plan = make_plan(fake_profile(tmp_path), "cpu", lambda name: silent)
    assert set(plan.declared.values()) == {"the engine gives no reason"}
    assert plan.units == ()


def test_two_spellings_of_one_ladder_are_one_cell_named_twice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is declared twice"):
        plan_for(fake_profile(tmp_path, ladder="[[1, 2], [2, 1]]"))


def test_one_worker_holds_the_cells_of_one_level_and_dtype() -> None:
    plan = plan_for(quick_on_the_fake())
    groups = batches(plan.units, "level")
    assert [{(unit.cell["level"], unit.dtype) for unit in group} for group in groups] == [
        {(0, "bfloat16")},
        {(0, "float32")},
        {(3, "bfloat16")},
        {(3, "float32")},
    ]
    assert sorted(unit.id for group in groups for unit in group) == sorted(unit.id for unit in plan.units)


def test_isolated_cells_have_a_worker_each() -> None:
    plan = plan_for(quick_on_the_fake())
    assert batches(plan.units, "cell") == [[unit] for unit in plan.units]


def test_quick_runs_batch_five_eagerly_by_policy_and_everything_else_in_a_bucket() -> None:
    cover = coverage(load_profile("quick"), Cell.of(mode="TR_HYBRID", ladder=(1, 2, 4)))
    assert [str(span) for span in cover.spans] == [
        "1 -> bucket 1 (TR_HYBRID)",
        "2 -> bucket 2 (TR_HYBRID)",
        "3-4 -> bucket 4 (TR_HYBRID)",
        "5 -> eager: above every bucket: eager, by the profile's policy",
    ]
    assert cover.hole == ""


def test_prefill_is_counted_in_tokens_up_to_the_longest_prompt() -> None:
    cover = coverage(load_profile("quick"), Cell.of(mode="TR_HYBRID", workload="prefill", ladder=(1, 2, 4)))
    assert [(span.first, span.last, span.route.bucket) for span in cover.spans] == [
        (1, 16, 16),
        (17, 64, 64),
        (65, 96, None),
    ]


def test_a_size_without_bucket_or_policy_is_a_named_hole(tmp_path: Path) -> None:
    plan = plan_for(fake_profile(tmp_path, ladder="[[1]]"))
    holes = plan.holes
    assert set(holes) == {cell.id for cell in plan.cells if cell["mode"] == "FULL"}
    assert all(text.startswith("requests 2: above every bucket, and no policy") for text in holes.values())


def test_a_cell_that_is_only_declared_has_no_hole(tmp_path: Path) -> None:
    plan = plan_for(fake_profile(tmp_path, ladder="[[1]]", workload='["prefill"]'))
    assert plan.declared
    assert not plan.holes


@given(
    ladder=st.sets(st.integers(1, 64), min_size=1, max_size=8).map(sorted),
    most=st.integers(1, 80),
    policy=st.booleans(),
    mode=st.sampled_from(sorted(MODES)),
)
def test_every_size_has_exactly_one_route_and_the_smallest_bucket_that_holds_it(
    ladder: list[int], most: int, policy: bool, mode: str
) -> None:
    decode_mode, _ = MODES[mode]
    routes = [route(size, decode_mode, ladder, policy) for size in range(1, most + 1)]
    for found in routes:
        fitting = [bucket for bucket in ladder if bucket >= found.size] if decode_mode != "NONE" else []
        assert found.bucket == (min(fitting) if fitting else None)
        assert found.hole == (not fitting and decode_mode != "NONE" and not policy)
        assert found.bucket is not None or found.reason
