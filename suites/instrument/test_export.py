"""A dashboard that got a row without its machine, or a NaN that JSON has no word for, drew a line through nothing."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.export import export
from harness.history.figures import COPY_KINDS, figures_of
from harness.records import Fate
from harness.store import RunData
from suites.instrument.stored_nights import CELL, header, lane


def run(*lanes: object, **changes: object) -> RunData:
    return RunData(header("c" * 40, 0, **changes), list(lanes))  # type: ignore[arg-type]


def test_csv_has_a_row_a_figure_with_its_machine_commit_and_axes(tmp_path: Path) -> None:
    out = tmp_path / "new" / "figures.csv"
    rows = export([run(lane([10.0, 12.0, 14.0]))], "csv", out)
    with out.open() as file:
        read = list(csv.DictReader(file))
    assert len(read) == rows
    latency = next(row for row in read if row["metric"] == "decode_latency_us")
    assert (latency["median"], latency["p25"], latency["samples"]) == ("12.0", "11.0", "3")
    assert (latency["commit"], latency["level"], latency["ladder"]) == ("c" * 40, "3", "1-2-4")
    assert latency["machine"].startswith("cpu-a-processor-2-cores-")
    assert latency["torch"] == "2.13.0"
    assert {row["dtype"] for row in read} == {"bfloat16"}, "the axis says only that it is the lane's own"


def test_a_cold_start_and_a_warm_one_are_told_apart_in_every_format(tmp_path: Path) -> None:
    capture = {"compile_s": 9.0, "compiles": {"num_inductor_compiles": 3, "num_cache_hits": 0}}
    cold = run(lane([10.0], capture=capture))
    export([cold], "csv", tmp_path / "figures.csv")
    with (tmp_path / "figures.csv").open() as file:
        assert [row["cache"] for row in csv.DictReader(file) if row["metric"] == "compile_s"] == ["cold"]
    export([cold], "hud", tmp_path / "hud.jsonl")
    read = [json.loads(line) for line in (tmp_path / "hud.jsonl").read_text().splitlines()]
    (row,) = (row for row in read if row["metric"]["name"] == "compile_s")
    assert row["inputs"]["cache"]["extra_info"]["value"] == "cold"


def test_hud_rows_carry_every_sample_runner_and_dependency(tmp_path: Path) -> None:
    out = tmp_path / "hud.jsonl"
    rows = export([run(lane([10.0, 12.0]))], "hud", out)
    read = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(read) == rows
    row = next(row for row in read if row["metric"]["name"] == "decode_latency_us")
    assert set(row) >= {"timestamp", "schema_version", "repo", "head_sha", "runners", "benchmark", "model", "inputs"}
    assert row["schema_version"] == "v3"
    assert row["metric"]["benchmark_values"] == [10.0, 12.0]
    assert row["benchmark"]["dtype"] == "bfloat16"
    assert row["dependencies"]["torch"]["version"] == "2.13.0"
    assert row["runners"][0]["type"] == "cpu"


def test_every_label_is_its_own_and_every_kind_of_copy_is_there() -> None:
    figures = list(figures_of(lane([1.0])))
    assert len({figure.label for figure in figures}) == len(figures)
    kinds = {figure.kind: figure.value for figure in figures if figure.metric == "copies_per_step"}
    assert kinds == {"": 7.0, **dict.fromkeys(COPY_KINDS, 0.0), "staging": 7.0}


@pytest.mark.parametrize("samples", [[], [float("nan")], [1.0, float("inf")], [-1.0]])
def test_a_figure_that_is_not_finite_is_not_exported(samples: list[float], tmp_path: Path) -> None:
    export([run(lane(samples))], "hud", tmp_path / "hud.jsonl")
    names = {json.loads(line)["metric"]["name"] for line in (tmp_path / "hud.jsonl").read_text().splitlines()}
    assert names == {"segments_per_step", "regions_per_step", "copies_per_step", "copied_bytes_per_step"}


@pytest.mark.parametrize("fate", [Fate.WRONG, Fate.CRASHED, Fate.DOWNGRADED])
def test_a_wrong_cell_has_nothing_to_export_and_an_empty_table_is_an_error(fate: Fate, tmp_path: Path) -> None:
    out = tmp_path / "figures.csv"
    with pytest.raises(UsageError, match="nothing to export"):
        export([run(lane([1.0], fate=fate))], "csv", out)
    assert not out.exists()


def test_an_unknown_format_and_a_folder_that_is_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose from csv, parquet, hud, asv"):
        export([run(lane([1.0]))], "xlsx", tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        export([run(lane([1.0]))], "csv", tmp_path / "file" / "figures.csv")


def test_parquet_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        export([run(lane([1.0]))], "parquet", tmp_path / "x.parquet")


def test_a_label_names_bucket_kind_arm_lane_and_cell() -> None:
    labels = {figure.label for figure in figures_of(lane([1.0], lane="float32"))}
    assert f"decode_latency_us[batch=2] {CELL} float32" in labels
    assert f"copies_per_step[batch=2,kind=staging] {CELL} float32" in labels
