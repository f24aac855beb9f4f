"""A profile with a slip in it must not start: a misspelt mode once swept nothing and was reported clean."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.errors import UsageError
from harness.filters import Filters, narrow, parse_ladder
from harness.profiles import available, load_profile
from suites.instrument.spine import fake_profile, write_profile


@pytest.mark.parametrize("name", ["quick", "tiny"])
def test_the_profiles_that_ship_are_sound_and_cover_the_same_matrix(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.axes.level == [0, 3]
    assert profile.axes.mode == ["NONE", "TR_HYBRID", "FULL"]
    assert profile.axes.workload == ["decode", "prefill"]
    assert profile.axes.ladder == [[1, 2, 4]]
    assert profile.prefill_sizes == [16, 64]
    assert profile.limits.max_num_seqs == 5
    assert profile.limits.eager_above_ladder


def test_a_night_sweeps_every_level_and_graph_in_a_process_for_each_cell() -> None:
    """It measures more than `quick` in every direction: what a laptop signs off, a night follows."""
    night, quick = load_profile("nightly"), load_profile("quick")
    assert night.isolation == "cell"
    assert set(night.axes.level) == {0, 1, 2, 3}
    for axis in ("model", "mode", "workload"):
        assert set(getattr(night.axes, axis)) >= set(getattr(quick.axes, axis)), axis
    assert set(night.axes.ladder[0]) > set(quick.axes.ladder[0])
    assert night.timing.samples > quick.timing.samples
    assert night.limits.max_num_seqs > max(night.axes.ladder[0]), "the first size past the ladder is driven too"


def test_a_profile_that_leaves_g1_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    """asv's own profile did: each of its graph cells was wrong, and each of their rows failed."""
    path = write_profile(tmp_path)
    few = "[numerics]\ninput_sets = 1\nreplays = 1"
    path.write_text(path.read_text().replace("[numerics]", few))
    with pytest.raises(UsageError, match="G1 compares nothing"):
        load_profile(str(path))
    path.write_text(path.read_text().replace("replays = 1", "replays = 2"))
    assert load_profile(str(path)).numerics.input_sets == 1


def test_an_unknown_profile_lists_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"unknown profile 'quik'; choose from .*quick, real, release, selftest, tiny"):
        load_profile("quik")
    assert {"quick", "tiny"} <= set(available())


def test_a_profile_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.toml cannot be read: No such file"):
        load_profile(str(tmp_path / "missing.toml"))


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("level", "[0, 4]", r"unknown level 4; choose from 0, 1, 2, 3"),
        ("mode", '["FUL"]', r"unknown mode 'FUL'; choose from NONE, TR_HYBRID, FULL"),
        ("workload", '["decod"]', r"unknown workload 'decod'; choose from decode, prefill"),
        ("level", "[]", r"axes\.level is empty"),
        ("mode", '["FULL", "FULL"]', r"axes\.mode: FULL is named 2 times"),
        ("ladder", "[[1, 0]]", r"ladder \[1, 0\]: 0 is not a size"),
        ("ladder", "[[1, -2]]", r"ladder \[1, -2\]: -2 is not a size"),
        ("ladder", "[[2, 2]]", r"ladder \[2, 2\]: 2 is named 2 times"),
        ("ladder", "[[1, 3]]", r"3 can never be reached, since max_num_seqs is 2"),
        ("ladder", "[[]]", r"ladder is empty"),
        ("ladder", "[[1, 1.5]]", r"Expected `int`, got `float` - at `\$\.axes\.ladder\[0\]\[1\]`"),
        ("ladder", "[[true]]", r"Expected `int`, got `bool`"),
        ("ladder", '[["1"]]', r"Expected `int`, got `str`"),
        ("max_num_seqs", "0", r"limits\.max_num_seqs = 0: must be at least 1"),
        ("num_blocks", "2", r"2 blocks of 4 cannot hold one request of 16 tokens"),
        ("replay_s", "0.0", r"time_limits\.replay_s must be more than 0"),
        ("replay_s", "nan", r"time_limits\.replay_s must be more than 0"),
        ("name", '"../up"', r"folders carry it"),
        ("title", "3", r"Expected `str`, got `int` - at `\$\.title`"),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused_by_name(tmp_path: Path, field: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        fake_profile(tmp_path, **{field: text})
    assert "fake.toml" in str(error.value)


def test_a_misspelt_field_is_refused_rather_than_ignored(tmp_path: Path) -> None:
    path = write_profile(tmp_path)
    path.write_text(path.read_text().replace("replay_s", "reply_s"))
    with pytest.raises(UsageError, match="unknown field `reply_s`"):
        load_profile(str(path))


def test_a_prefill_bucket_that_no_step_can_fill_is_refused(tmp_path: Path) -> None:
    profile = msgspec.structs.replace(fake_profile(tmp_path), prefill_sizes=[16, 64])
    with pytest.raises(UsageError, match=r"prefill_sizes \[16, 64\]: 64 can never be reached"):
        narrow(profile, Filters())


def test_the_digest_changes_with_every_field_and_with_nothing_else(tmp_path: Path) -> None:
    base = fake_profile(tmp_path).digest()
    changed = [("level", "[0]"), ("ladder", "[[2]]"), ("replay_s", "21.0"), ("block_size", "8"), ("title", '"x"')]
    digests = {fake_profile(tmp_path, **{field: text}).digest() for field, text in changed}
    assert base not in digests
    assert len(digests) == len(changed)
    assert fake_profile(tmp_path).digest() == base


def test_a_filter_replaces_an_axis_and_is_remembered(tmp_path: Path) -> None:
    filters = Filters(level=[3], ladder=["2,1", "2"], dtype="float32", seed=7)
    profile = narrow(fake_profile(tmp_path), filters)
    assert profile.axes.level == [3]
    assert profile.axes.mode == ["NONE", "FULL"]
    assert profile.axes.ladder == [[2, 1], [2]]
    assert profile.numerics.serving_dtype == {"cpu": "float32", "cuda": "float32"}
    assert profile.numerics.seed == 7
    assert filters.named() == {"level": ["3"], "ladder": ["2,1", "2"], "dtype": ["float32"], "seed": ["7"]}
    assert Filters().named() == {}


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (Filters(level=[9]), "unknown level 9"),
        (Filters(mode=["full"]), "unknown mode 'full'"),
        (Filters(ladder=["1,4"]), "4 can never be reached"),
        (Filters(ladder=["1,1"]), "1 is named 2 times"),
        (Filters(ladder=["-1"]), "-1 is not a size"),
        (Filters(dtype="float8"), "unknown dtype 'float8'; choose from bfloat16, float32"),
    ],
)
def test_a_filter_obeys_the_rules_of_the_profile(tmp_path: Path, filters: Filters, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        narrow(fake_profile(tmp_path), filters)


@pytest.mark.parametrize("text", ["1,x", "1.5", "", "1,,2", "one"])
def test_a_ladder_that_is_not_whole_numbers_says_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match="is not a whole number; write sizes with commas, as in 1,2,4"):
        parse_ladder(text)


def test_narrowing_leaves_the_profile_that_was_loaded_alone(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    narrow(profile, Filters(level=[3], dtype="float32"))
    assert profile == fake_profile(tmp_path)
