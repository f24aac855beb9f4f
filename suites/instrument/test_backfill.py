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
from harness.sources import source_digest
from harness.store import RunData
from suites.instrument.spine import CHECKOUT
from suites.instrument.stored_nights import FACTS, header, lane, make_commits, store
from suites.instrument.test_compare import git

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


GPU = {"name": "NVIDIA H200", "arch": "sm_90", "compute_partition": "whole", "memory_partition": "unknown"}
ON_GPU = {**FACTS, "gpus": [{**GPU, "power_cap_w": 700}], "visible_gpus": 1}
POOL = "decode.DecodeRecordings.track_pool_bytes"
COMPILE = "start.Start.track_compile_s"


def test_a_machine_is_named_by_its_hardware_and_never_by_its_host(
    tmp_path: Path, benchmarks: dict[str, dict[str, object]]
) -> None:
    (commit,) = make_commits(tmp_path / "repo", 1)
    runs = [
        store(tmp_path, commit, 0, lane([9.0]), fingerprint=ON_GPU, device="cuda"),
        store(tmp_path, commit, 1, lane([9.0])),
    ]
    made = backfill(runs, tmp_path / "repo", tmp_path / "asv", benchmarks)
    assert [one.path.parent.name for one in made if one.path] == ["nvidia-h200", "cpu-2core"]
    described = json.loads((tmp_path / "asv" / "nvidia-h200" / "machine.json").read_text())
    assert described["gpu"] == "1 x NVIDIA H200"
    assert "700w" in described["series"], "a lower power cap is another line of the plot"
    (named,) = backfill(runs[:1], tmp_path / "repo", tmp_path / "asv", benchmarks, "mi355x-node01")
    assert named.path is not None
    assert named.path.parent.name == "mi355x-node01"


def test_a_run_without_git_is_known_by_its_sources(tmp_path: Path, benchmarks: dict[str, dict[str, object]]) -> None:
    """A GPU machine gets a copy of the tree and no history."""
    repo, (older,) = tmp_path / "repo", make_commits(tmp_path / "repo", 1)
    for name in ("harness", "atom_impl"):
        (repo / name).mkdir()
        (repo / name / "__init__.py").write_text(f"NAME = '{name}'\n")
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "-m", "code")
    sources = source_digest([repo / "harness", repo / "atom_impl"])
    copied = {"commit": "unknown", "dirty": "unknown", "dirty_digest": "abcd", "sources": sources}
    runs = [
        store(tmp_path, "unknown", night, lane([9.0]), engine_revision=facts)
        for night, facts in enumerate([copied, {**copied, "sources": "0123"}])
    ]
    known, unknown = backfill(runs, repo, tmp_path / "asv", benchmarks)
    assert known.path is not None
    commit = git(repo, "rev-parse", "HEAD")
    assert commit != older
    assert known.path.name.startswith(commit[:8])
    assert "not in this repository" in unknown.skipped


def test_what_a_night_sweeps_beyond_the_suite_gets_its_rows_and_each_ladder_its_own(
    tmp_path: Path, benchmarks: dict[str, dict[str, object]]
) -> None:
    (commit,) = make_commits(tmp_path / "repo", 1)
    wide = {**lane([1.0]).axes, "level": 2, "ladder": [1, 2, 8]}
    runs = [
        store(tmp_path, commit, 0, lane([9.0], capture={"pool_bytes": 100})),
        store(tmp_path, commit, 1, lane([9.0], axes=wide, capture={"pool_bytes": 300})),
    ]
    backfill(runs, tmp_path / "repo", tmp_path / "asv", benchmarks)
    read = {one.name: one.points[-1].value for one in history_of_asv(tmp_path / "asv").series}
    assert read[f"{POOL}('smollm2-135m-instruct', 3, 'FULL', '1-2-4')"] == 100.0
    assert read[f"{POOL}('smollm2-135m-instruct', 2, 'FULL', '1-2-8')"] == 300.0
    assert read[f"{POOL}('smollm2-135m-instruct', 3, 'FULL', '1-2-8')"] is None
    listed = json.loads((tmp_path / "asv" / "benchmarks.json").read_text())
    assert listed[POOL]["params"][-1] == ["'1-2-4'", "'1-2-8'"]


def test_times_of_a_busy_machine_are_left_out_and_its_counts_are_not(
    tmp_path: Path, benchmarks: dict[str, dict[str, object]]
) -> None:
    (commit,) = make_commits(tmp_path / "repo", 1)
    busy = {**FACTS, "now": {"load_1min": "6.15"}}
    run = store(tmp_path, commit, 0, lane([9.0]), fingerprint=busy)
    (made,) = backfill([run], tmp_path / "repo", tmp_path / "asv", benchmarks)
    assert str(made).endswith("without times: the load was 6.15 on 2 cores when it began")
    read = {one.name.partition("(")[0] for one in history_of_asv(tmp_path / "asv").series}
    assert LATENCY not in read
    assert COPIES in read


def test_a_cold_start_and_a_warm_one_are_two_rows(tmp_path: Path, benchmarks: dict[str, dict[str, object]]) -> None:
    (commit,) = make_commits(tmp_path / "repo", 1)
    found = [(9.0, {"num_inductor_compiles": 3}), (2.0, {"num_cache_hits": 3})]
    runs = [
        store(tmp_path, commit, night, lane([9.0], capture={"compile_s": seconds, "compiles": compiles}))
        for night, (seconds, compiles) in enumerate(found)
    ]
    backfill(runs, tmp_path / "repo", tmp_path / "asv", benchmarks)
    read = {one.name: one.points[-1].value for one in history_of_asv(tmp_path / "asv").series}
    assert read[f"{COMPILE}('smollm2-135m-instruct', 3, 'FULL', '1-2-4', 'cold')"] == 9.0
    assert read[f"{COMPILE}('smollm2-135m-instruct', 3, 'FULL', '1-2-4', 'warm')"] == 2.0


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
