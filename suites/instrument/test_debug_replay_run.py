"""Guards against a debug replay that is read as a sign-off: all gates green, and no recorded kernel was ever replayed.

Bookkeeping runs for real in such a run and graphs do not, so its verdict says so, is never a pass, and no baseline is
taken from it; asked for by the flag or by the environment variable alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from harness import errors
from harness.cli import app
from harness.debug_replay import MEANINGLESS, problems
from harness.filters import Filters, narrow
from harness.profiles import load_profile
from harness.records import LaneRecord, Status
from harness.store import RunData, list_runs, load_run
from suites.instrument.test_verdicts import header, lane

CELL = ("--profile", "tiny", "--level", "0", "--mode", "TR_HYBRID", "--workload", "decode", "--dtype", "float32")


def sign_off(tmp_path: Path, *flags: str, command: str = "signoff") -> tuple[int, str, RunData]:
    arguments = [command, *CELL, "--device", "cpu", "--results", str(tmp_path), *flags]
    ended = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    return ended.exit_code, ended.output, load_run(list_runs(tmp_path / "runs")[-1])


def test_the_flag_runs_segments_eagerly_and_the_verdict_says_that_no_kernel_was_replayed(tmp_path: Path) -> None:
    code, output, run = sign_off(tmp_path, "--debug-replay")
    assert code == errors.INCOMPLETE, output
    assert run.verdict is not None
    assert "debug replay: no kernel was replayed" in run.verdict.title
    assert any("no recorded kernel was replayed" in reason for reason in run.verdict.reasons)
    assert [cell.fate.value for cell in run.verdict.cells] == ["measured"], "the bookkeeping itself is right"
    (record,) = run.lanes
    assert record.capture["debug_replay"] is True
    assert record.latency == []
    left_out = {gate.gate for gate in record.gates if "debug replay" in gate.message}
    assert left_out == set(MEANINGLESS)
    assert all(gate.status is Status.NOT_APPLICABLE for gate in record.gates if gate.gate in MEANINGLESS)
    assert run.header.filters["debug_replay"] == ["on"]
    refused = CliRunner().invoke(app, ["accept", "--results", str(tmp_path)])
    assert refused.exit_code == errors.USAGE
    assert "debug replay" in refused.output


def test_the_environment_variable_alone_ends_in_the_same_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_DEBUG_REPLAY", "1")
    code, output, run = sign_off(tmp_path)
    assert code == errors.INCOMPLETE, output
    assert run.verdict is not None
    assert "debug replay" in run.verdict.title


def debug_lane(cell: str, debug: Any) -> LaneRecord:
    return msgspec.structs.replace(lane(cell), capture={"debug_replay": debug, "buckets": {}})


def test_an_engine_that_does_not_confirm_what_was_asked_is_named() -> None:
    asked = header(filters={"debug_replay": ["on"]})
    lanes = [debug_lane("a", True), debug_lane("b", False)]
    said = problems(asked, lanes)
    assert len(said) == 2
    assert "1 of 2 lanes" in said[0]
    assert "the engine of b does not say" in said[1]


def test_a_run_that_replayed_its_graphs_has_nothing_to_say() -> None:
    assert problems(header(), [lane("a"), debug_lane("b", False)]) == []


def test_a_profiles_digest_changes_with_debug_replay_and_not_without() -> None:
    plain = load_profile("tiny")
    asked = narrow(plain, Filters(debug_replay=True))
    assert asked.debug_replay
    assert plain.digest() != asked.digest()
    assert narrow(plain, Filters()).digest() == plain.digest()


def test_the_length_of_the_soak_is_a_flag_that_travels_with_the_run() -> None:
    filters = Filters(soak=1000)
    assert narrow(load_profile("tiny"), filters).numerics.soak_steps == 1000
    assert filters.named() == {"soak": ["1000"]}
    with pytest.raises(errors.UsageError, match="soak_steps = -1"):
        narrow(load_profile("tiny"), Filters(soak=-1))
