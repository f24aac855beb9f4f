"""asv turns one NaN into n/a, hangs on an infinity, and shows a crash as a gap: a row must raise before any of these.

The figures come from a run's records alone, so records made here drive them; asv itself discovers the rows at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.profiles import load_profile
from harness.records import Fate, LaneRecord, Latency, Phase, RunHeader
from harness.store import RunData
from suites.instrument.spine import write_profile
from suites.performance import CHECKOUT, decode, figures, start

HEADER = RunHeader(
    run="r",
    profile="p",
    profile_hash="0",
    command=[],
    started="",
    cells=[],
    units=[],
    declared={},
    device="cpu",
    fingerprint={},
    engine_revision={},
    harness_revision={},
)
MODEL = "smollm2-135m-instruct"
COPIES = {"staging": {"count": 7, "bytes": 300}, "output": {"count": 1, "bytes": 512}}


def latency(samples_us: list[float], *, arm: str = "R", phase: str = "decode", batch: int = 2) -> Latency:
    return Latency(
        arm=arm, phase=phase, batch=batch, bucket=2, median_us=1.0, p25_us=1.0, p75_us=1.0, samples_us=samples_us
    )


def lane(**changes: Any) -> LaneRecord:
    fields: dict[str, Any] = {
        "cell": "level=3,mode=FULL",
        "axes": {"model": MODEL, "level": 3, "mode": "FULL", "workload": "decode"},
        "lane": "serving",
        "dtype": "bfloat16",
        "fate": Fate.MEASURED,
        "phase": Phase.TEARDOWN,
        "latency": [latency([10.0, 12.0])],
        "counters": {"per_bucket": {"2": {"segments": 1, "copies": COPIES}}},
    }
    return LaneRecord(**{**fields, **changes})


def figures_of(*lanes: LaneRecord) -> figures.Figures:
    return figures.decode_figures(RunData(HEADER, list(lanes)))


def test_a_row_shows_every_sample_and_all_copied_bytes() -> None:
    found = figures_of(lane())
    row = decode.DecodeLatency().track_decode_latency_us(found, MODEL, 3, "FULL", 2)
    assert row == {"samples": [10.0, 12.0], "number": 1}
    assert decode.DecodeCopies().track_copied_bytes_per_step(found, MODEL, 3, "FULL", 2) == 812.0


def test_each_kind_of_copy_has_its_row_and_one_that_is_not_made_is_zero() -> None:
    found, row = figures_of(lane()), decode.DecodeCopyCounts()
    counts = {kind: row.track_copies_per_step(found, MODEL, 3, "FULL", 2, kind) for kind in row.params[-1]}
    assert counts == {"staging": 7.0, "output": 1.0, "copy_in": 0.0, "handoff": 0.0, "padding": 0.0}


def test_topology_recordings_and_start_have_their_rows() -> None:
    capture = {"pool_bytes": 4096, "capture_s": 0.5, "compile_s": 9.0, "start_s": 11.0, "compiles": {"recompiles": 0}}
    counters = {**lane().counters, "driven_steps": 4, "replayed_steps": 3}
    found = figures_of(lane(capture=capture, counters=counters))
    assert decode.DecodeTopology().track_segments_per_step(found, MODEL, 3, "FULL", 2) == 1.0
    recordings = decode.DecodeRecordings()
    assert recordings.track_pool_bytes(found, MODEL, 3, "FULL", "1-2-4") == 4096.0
    assert recordings.track_unreplayed_share(found, MODEL, 3, "FULL", "1-2-4") == 0.25
    assert recordings.track_recompiles(found, MODEL, 3, "FULL", "1-2-4") == 0.0
    runs = {"cold": found, "warm": figures_of(lane(fate=Fate.CRASHED, reason="died"))}
    assert start.Start().track_compile_s(runs, MODEL, 3, "FULL", "1-2-4", "cold") == 9.0
    assert start.Start().track_first_graph_s(runs, MODEL, 3, "FULL", "1-2-4", "cold") == 11.0
    with pytest.raises(figures.NoFigure, match="crashed: died"):
        start.Start().track_capture_s(runs, MODEL, 3, "FULL", "1-2-4", "warm")


def started(**compiles: int) -> dict[str, Any]:
    return {"capture_s": 0.5, "compile_s": 9.0, "start_s": 11.0, "compiles": compiles}


def test_a_start_that_was_to_be_cold_and_found_a_cache_has_no_figure() -> None:
    loaded = figures_of(lane(capture=started(num_inductor_compiles=0, num_cache_hits=3)))
    mixed = figures_of(lane(capture=started(num_inductor_compiles=1, num_cache_hits=2)))
    row = start.Start()
    assert row.track_compile_s({"warm": loaded}, MODEL, 3, "FULL", "1-2-4", "warm") == 9.0
    with pytest.raises(figures.NoFigure, match="was to find a cold cache and found it warm"):
        row.track_compile_s({"cold": loaded}, MODEL, 3, "FULL", "1-2-4", "cold")
    with pytest.raises(figures.NoFigure, match="found it mixed"):
        row.track_first_graph_s({"warm": mixed}, MODEL, 3, "FULL", "1-2-4", "warm")


def test_a_cell_that_cannot_be_started_is_a_failed_row_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(profile: str, results: Path, environment: Any, arguments: list[str]) -> RunData:
        assert environment["ATOM_CACHE_ROOT"] != environment["TRITON_CACHE_DIR"]
        asked = dict(zip(arguments[::2], arguments[1::2], strict=True))
        if asked["--mode"] == "FULL":
            raise figures.NoFigure("exit code 4: the disk is full")
        axes = {**lane().axes, "level": int(asked["--level"]), "mode": asked["--mode"]}
        return RunData(HEADER, [lane(axes=axes, capture=started())])

    monkeypatch.setattr(start, "measure", run)
    monkeypatch.setenv("ATOM_CACHE_ROOT", str(tmp_path))
    runs = start.Start().setup_cache()
    assert start.Start().track_capture_s(runs, MODEL, 3, "TR_HYBRID", "1-2-4", "cold") == 0.5
    with pytest.raises(figures.NoFigure, match="the disk is full"):
        start.Start().track_capture_s(runs, MODEL, 3, "FULL", "1-2-4", "cold")


def test_a_cell_that_was_declared_unsupported_says_so_in_its_row() -> None:
    axes = {name: [lane().axes[name]] for name in ("model", "level", "mode")}
    text = {"axes": {**axes, "engine": ["atom_impl"], "op_backend": ["torch"], "ladder": [[1, 2, 4]]}}
    name = "level=3,mode=FULL,ladder=1-2-4"
    header = msgspec.structs.replace(HEADER, declared={name: "no such graph here"}, profile_text=text)
    found = figures.decode_figures(RunData(header, []))
    with pytest.raises(figures.NoFigure, match="unsupported: no such graph here"):
        found.samples("decode_latency_us", MODEL, 3, "FULL", 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ladder": "[[1, 2], [1]]"}, "no axis for ladder, and it sweeps 2"),
        ({"workload": '["prefill"]'}, "asv's rows are decode steps"),
    ],
)
def test_a_profile_that_the_rows_cannot_show_is_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        figures.axes_of(str(write_profile(tmp_path, **changes)))


def test_the_rows_of_another_profile_are_its_own_axes() -> None:
    axes = figures.axes_of("tiny")
    assert (axes.models, axes.graphs, axes.ladder) == (["random:tiny-llama"], ["TR_HYBRID", "FULL"], "1-2-4")
    assert axes.narrowing == ["--workload", "decode"], "a profile's prefill cells have no row here"


def test_only_full_buckets_of_the_served_arm_in_decode_count() -> None:
    others = [latency([1.0], arm="E"), latency([2.0], phase="prefill"), latency([3.0], batch=1), latency([9.0])]
    found = figures_of(lane(latency=others))
    assert [figure.samples for figure in found.figures if figure.metric == "decode_latency_us"] == [(9.0,)]
    prefill = lane(axes={"model": MODEL, "level": 3, "mode": "FULL", "workload": "prefill"})
    assert figures_of(prefill, lane(lane="float32")) == figures.Figures()


NO_FIGURE = (
    Fate.WRONG,
    Fate.CRASHED,
    Fate.HUNG,
    Fate.TEARDOWN_CRASHED,
    Fate.DOWNGRADED,
    Fate.UNSUPPORTED,
    Fate.UNFIT,
    Fate.NOT_RUN,
)


@pytest.mark.parametrize("fate", NO_FIGURE)
def test_a_wrong_a_broken_and_a_downgraded_cell_have_no_figure_to_publish(fate: Fate) -> None:
    found = figures_of(lane(fate=fate, reason="the reason"))
    with pytest.raises(figures.NoFigure, match=f"{MODEL}, level 3, mode FULL: {fate.value}: the reason"):
        found.samples("decode_latency_us", MODEL, 3, "FULL", 2)
    with pytest.raises(figures.NoFigure, match=fate.value):
        found.value("copied_bytes_per_step", MODEL, 3, "FULL", 2)


@pytest.mark.parametrize("fate", sorted(set(Fate) - set(NO_FIGURE)))
def test_a_right_answer_at_another_cost_is_what_asv_is_there_to_show(fate: Fate) -> None:
    found = figures_of(lane(fate=fate, reason="one more copy"))
    assert found.value("copied_bytes_per_step", MODEL, 3, "FULL", 2) == 812.0


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")], [-1.0]])
def test_what_asv_cannot_store_is_raised(samples: list[float]) -> None:
    with pytest.raises(figures.NoFigure, match="finite and not negative"):
        figures_of(lane(latency=[latency(samples)])).samples("decode_latency_us", MODEL, 3, "FULL", 2)


def test_a_row_without_a_record_names_what_is_missing() -> None:
    with pytest.raises(figures.NoFigure, match="level 0, mode NONE: the run recorded no decode_latency_us at batch 4"):
        figures_of(lane()).samples("decode_latency_us", MODEL, 0, "NONE", 4)


def test_a_run_that_fails_is_raised_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    with pytest.raises(figures.NoFigure, match=r"exit code 2:[\s\S]*unknown profile 'no-such-profile'"):
        figures.measure("no-such-profile", tmp_path)


def test_every_row_of_the_suite_is_a_cell_of_its_profile() -> None:
    profile = load_profile(decode.PROFILE)
    models, levels, modes, batches = decode.DecodeLatency.params
    axes = profile.axes
    assert (models, levels, modes, [batches]) == (axes.model, axes.level, axes.mode, axes.ladder)
    assert set(decode.DecodeTopology.params[2]) == set(modes) - {"NONE"}
    first = load_profile(start.PROFILE).axes
    assert start.Start.params[:3] == (first.model, first.level, first.mode)


def test_asv_discovers_the_rows_with_unit_version_and_one_setup_for_all(tmp_path: Path) -> None:
    out = tmp_path / "benchmarks.json"
    script = (
        "import sys, asv_runner.discovery as d; sys.path.insert(0, sys.argv[1] + '/suites');"
        "d.list_benchmarks(sys.argv[1] + '/suites/performance', open(sys.argv[2], 'w'))"
    )
    subprocess.run([sys.executable, "-c", script, str(CHECKOUT), str(out)], check=True, cwd=tmp_path, timeout=120)
    rows = {row["name"]: row for row in json.loads(out.read_text())}
    assert sorted(rows) == [
        "decode.DecodeCopies.track_copied_bytes_per_step",
        "decode.DecodeCopyCounts.track_copies_per_step",
        "decode.DecodeLatency.track_decode_latency_us",
        "decode.DecodeRecordings.track_pool_bytes",
        "decode.DecodeRecordings.track_recompiles",
        "decode.DecodeRecordings.track_unreplayed_share",
        "decode.DecodeTopology.track_regions_per_step",
        "decode.DecodeTopology.track_segments_per_step",
        "start.Start.track_capture_s",
        "start.Start.track_compile_s",
        "start.Start.track_first_graph_s",
    ]
    assert {row["unit"] for row in rows.values()} == {"us", "bytes", "count", "share", "seconds"}
    assert all(row["version"].startswith("protocol ") for row in rows.values())
    assert len({row["setup_cache_key"] for row in rows.values()}) == 2, "one sweep for each file"
