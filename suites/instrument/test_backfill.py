"""asv writes once, at its end, and an interrupt lost the night; what our store kept must reach asv's pages whole."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from asv.results import Results

from harness.errors import UsageError
from harness.export.asv_results import backfill, discover
from harness.history.series import history_of_asv
from harness.nightly import publish
from harness.records import LaneRecord
from harness.store import RunData
from suites.instrument.spine import CHECKOUT
from suites.instrument.stored_nights import FACTS, header, lane, make_commits, store

LATENCY = "decode.DecodeLatency.track_decode_latency_us"
COPIES = "decode.DecodeCopies.track_copied_bytes_per_step"


@pytest.fixture(scope="module")
def benchmarks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    return discover(CHECKOUT, tmp_path_factory.mktemp("asv"))


def test_a_run_becomes_a_result_file_that_asv_reads_with_its_statistics(
    tmp_path: Path, benchmarks: dict[str, dict[str, object]]
) -> None:
    (commit,) = make_commits(tmp_path / "repo", 1)
    run = store(tmp_path, commit, 0, lane([10.0, 11.0, 12.0, 13.0, 14.0]))
    (made,) = backfill([run], tmp_path / "repo", tmp_path / "asv", benchmarks)
    assert made.path is not None
    read = Results.load(str(made.path), machine_name=made.path.parent.name)
    assert read.commit_hash == commit
    assert read.params["torch"] == "2.13.0"
    params = read.get_result_params(LATENCY)
    values = read.get_result_value(LATENCY, params)
    assert sorted(value for value in values if value is not None) == [12.0], "one bucket was timed, the rest is a hole"
    at = values.index(12.0)
    assert read.get_result_samples(LATENCY, params)[at] == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert read.get_result_stats(LATENCY, params)[at]["q_25"] == 11.0
    assert 300.0 in read.get_result_value(COPIES, read.get_result_params(COPIES))


def test_a_second_run_of_a_commit_completes_its_file_and_keeps_what_the_first_gave(
    tmp_path: Path, benchmarks: dict[str, dict[str, object]]
) -> None:
    (commit,) = make_commits(tmp_path / "repo", 1)
    eager = {"level": 0, "mode": "NONE"}
    first = store(tmp_path, commit, 0, lane([10.0]))
    second = store(tmp_path, commit, 0.1, lane([20.0], cell="other", axes={**lane([1.0]).axes, **eager}))
    made = backfill([second, first], tmp_path / "repo", tmp_path / "asv", benchmarks)
    assert len({one.path for one in made}) == 1
    read = {one.name: one.points[-1].value for one in history_of_asv(tmp_path / "asv").series}
    assert read[f"{LATENCY}('smollm2-135m-instruct', 3, 'FULL', 2)"] == 10.0
    assert read[f"{LATENCY}('smollm2-135m-instruct', 0, 'NONE', 2)"] == 20.0


def test_another_torch_is_another_line_of_the_plot(tmp_path: Path, benchmarks: dict[str, dict[str, object]]) -> None:
    (commit,) = make_commits(tmp_path / "repo", 1)
    newer = {**FACTS, "software": {**FACTS["software"], "torch": "2.14.0"}}
    runs = [store(tmp_path, commit, 0, lane([10.0])), store(tmp_path, commit, 1, lane([11.0]), fingerprint=newer)]
    made = backfill(runs, tmp_path / "repo", tmp_path / "asv", benchmarks)
    assert len({one.path for one in made}) == 2


def test_what_is_not_the_commits_own_is_left_out_and_said(
    tmp_path: Path, benchmarks: dict[str, dict[str, object]]
) -> None:
    (commit,) = make_commits(tmp_path / "repo", 1)
    edited = {"commit": commit, "dirty": "yes", "dirty_digest": "abcd"}
    runs = [
        store(tmp_path, commit, 0, lane([1.0]), engine_revision=edited),
        store(tmp_path, "f" * 40, 1, lane([1.0])),
        store(tmp_path, commit, 2, lane([1.0], axes={**lane([1.0]).axes, "model": "random:tiny-llama"})),
        store(tmp_path, commit, 3),
    ]
    reasons = [one.skipped for one in backfill(runs, tmp_path / "repo", tmp_path / "asv", benchmarks)]
    assert "edits" in reasons[0]
    assert "not in this repository" in reasons[1]
    assert "no row of the suite" in reasons[2]
    assert "no row of the suite" in reasons[3]
    assert not list((tmp_path / "asv").glob("*/*.json"))


def cell_beside(record: LaneRecord) -> LaneRecord:
    return msgspec.structs.replace(record, cell="level=0", axes={**record.axes, "level": 0, "mode": "NONE"})


def test_no_infinity_reaches_asv(tmp_path: Path, benchmarks: dict[str, dict[str, object]]) -> None:
    (commit,) = make_commits(tmp_path / "repo", 1)
    run = RunData(header(commit, 0), [lane([1.0, float("inf")]), cell_beside(lane([5.0] * 9))])
    (made,) = backfill([run], tmp_path / "repo", tmp_path / "asv", benchmarks)
    assert made.path is not None
    values, *_ = json.loads(made.path.read_text())["results"][LATENCY]
    assert [value for value in values if value is not None] == [5.0]


def test_asv_makes_its_pages_from_what_was_backfilled(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    for commit in make_commits(repo, 2):
        store(tmp_path, commit, 0 if not (tmp_path / "runs").exists() else 1, lane([10.0, 11.0]))
    for name in ("asv.conf.json", "suites", "harness"):
        (repo / name).symlink_to(CHECKOUT / name)
    told = list(publish(tmp_path, repo, tmp_path / "asv", "quick"))
    assert told[-1] == f"asv: pages are in {tmp_path / 'asv-html'}"
    index = json.loads((tmp_path / "asv-html" / "index.json").read_text())
    assert LATENCY in index["benchmarks"]
    assert len(index["revision_to_hash"]) == 2


def test_a_suite_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"asv\.conf\.json cannot be read"):
        discover(tmp_path, tmp_path / "asv")
    (tmp_path / "asv.conf.json").write_text('{"benchmark_dir": "bench"}')
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").write_text("raise RuntimeError('no such engine')")
    with pytest.raises(UsageError, match="no such engine"):
        discover(tmp_path, tmp_path / "asv")
