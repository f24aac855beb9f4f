"""Guards against a comparison of two starts that were both cold, or of bits that nobody looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import cache_bits
from tools.cache_bits import compare


def side(digest: str = "aa", compiled: int = 3, loaded: int = 0) -> dict[str, Any]:
    return {"bits": {"C": {"1": digest}}, "compiled": compiled, "loaded": loaded}


WARM: dict[str, Any] = {"compiled": 0, "loaded": 3}


def test_equal_bits_of_a_cold_and_a_warm_start_are_right() -> None:
    assert compare({}, side(), side(**WARM))["wrong"] == []


def test_other_bits_are_named_with_arm_and_rows() -> None:
    assert compare({}, side(), side("bb", **WARM))["wrong"] == ["arm C at 1 rows: aa cold and bb warm"]


@pytest.mark.parametrize(
    ("cold", "warm", "said"),
    [
        (side(compiled=0), side(**WARM), "the cold start compiled nothing"),
        (side(), side(compiled=1, loaded=2), "the warm start compiled 1 pieces and loaded 2"),
        (side(), side(compiled=0, loaded=0), "the warm start compiled 0 pieces and loaded 0"),
    ],
)
def test_sides_that_are_not_what_they_are_called_prove_nothing(cold: Any, warm: Any, said: str) -> None:
    assert compare({}, cold, warm)["wrong"] == [said]


def test_the_command_compares_two_real_starts_and_leaves_a_record(tmp_path: Path, device: str) -> None:
    out = tmp_path / "bits.json"
    asked = ["--model", "random:tiny-llama", "--dtypes", "float32", "--device", device, "--out", str(out)]
    assert cache_bits.main(asked) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert set(row["cold"]["bits"]) == {"E", "C", "R"}
    assert row["cold"]["bits"] == row["warm"]["bits"]
    assert len({digest for sizes in row["cold"]["bits"].values() for digest in sizes.values()}) > 3
