"""Guards against an overhead of replays that is measured on other graphs than those it is held against.

The bare loop must launch the very graphs of the recording that the step replays, and the figures must say on what they
were taken: a software graph's host time is no GPU's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from atom_impl.graphs.recording import Recording
from tools import replay_overhead


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_overhead, "WARM", 1)
    monkeypatch.setattr(replay_overhead, "SAMPLES", 3)
    monkeypatch.setattr(replay_overhead, "LADDER", (1, 2))


@pytest.mark.usefixtures("short")
def test_the_record_holds_both_modes_at_every_bucket_and_says_what_the_graphs_were(tmp_path: Path) -> None:
    out = tmp_path / "machine" / "replay_overhead.json"
    before = Recording.replay, Recording._run_region
    arguments = ["--device", "cpu", "--model", "random:tiny-llama?layers=3", "--out", str(out)]
    assert replay_overhead.main(arguments) == 0
    assert (Recording.replay, Recording._run_region) == before, "what watched the step is gone"
    record = json.loads(out.read_text())
    assert "software graph" in record["graphs"]
    shapes = {(row["mode"], row["batch"]): (row["segments"], row["regions"]) for row in record["rows"]}
    assert shapes == {
        ("TR_HYBRID", 1): (4, 3),
        ("TR_HYBRID", 2): (4, 3),
        ("FULL", 1): (1, 0),
        ("FULL", 2): (1, 0),
    }
    for row in record["rows"]:
        assert row["effective_mode"] == row["mode"]
        assert row["step"]["host_us"][1] > row["replay_host_us"][1] > row["regions_host_us"][1] >= 0
        assert row["bare_loop"]["host_us"][1] > 0
        assert row["launches_host_us"][1] > 0
        spans = ("regions_host_us", "launches_host_us", "bookkeeping_host_us")
        assert row["replay_host_us"][0] <= sum(row[name][2] for name in spans)
        assert 0 < row["bookkeeping_host_us"][1] < row["replay_host_us"][1]
        assert (row["regions_host_us"][1] > 0) is (row["mode"] == "TR_HYBRID")
    assert record["split"]["kernels"] == replay_overhead.SEGMENTS * replay_overhead.KERNELS_EACH
    assert f"host_us_more_for_{replay_overhead.SEGMENTS}_graphs" in record["split"]
    assert record["machine"]


def test_a_gpu_that_is_not_there_is_not_replaced_by_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "record.json"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert replay_overhead.main(["--device", "cuda", "--out", str(out)]) == 4
    assert not out.exists()
