"""A cell failed for a recompile, and nothing in its record said which guard: the night was run again to find out.

What torch's compiler says of a unit is kept while the unit runs, goes into the record where something failed, and
leaves nothing behind where all was well.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console

from harness import compiler_log as subject
from harness.compiler_log import CompilerTrace, compiler_log, dynamo_counters, folder_of
from harness.job import Job
from harness.plan import Unit, make_plan
from harness.plugins import find_engine
from harness.records import CompilerLog, Fate, LaneRecord, Phase
from harness.report.explain import _print_compiler
from harness.worker import UnitRun
from suites.instrument.spine import HERE, fake_environment, fake_profile

UNIT = "model=a,level=1,mode=NONE#float32"


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()  # the break
    return x + 1


def recompile() -> None:
    torch._dynamo.reset()
    run = torch.compile(doubled, backend="eager", dynamic=False)
    run(torch.ones(4))
    run(torch.ones(5))


@pytest.fixture
def said(tmp_path: Path) -> CompilerLog:
    """Of a unit that recompiled in capture and broke its graph in replay."""
    phase = ["capture"]
    with CompilerTrace(folder_of(tmp_path, UNIT), lambda: phase[0]):
        recompile()
        phase[0] = "replay"
        torch.compile(with_a_break, backend="eager")(torch.ones(3))
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(with_a_break, backend="eager", fullgraph=True)(torch.ones(3))
    log = compiler_log(tmp_path, UNIT, dynamo_counters())
    assert log is not None
    return log


def test_a_recompile_carries_the_guard_that_failed_and_the_phase(said: CompilerLog) -> None:
    assert len(said.recompiles) == 1
    assert said.recompiles[0].startswith("in capture: ")
    assert "size mismatch at index 0. expected 4, actual 5" in said.recompiles[0]


def test_a_graph_break_carries_its_line_and_a_refused_one_is_a_failure(said: CompilerLog) -> None:
    assert any(__file__ in text for text in said.graph_breaks)
    assert any("Unsupported" in text and __file__ in text for text in said.failures)
    assert any(name.startswith("graph_break.") for name in said.counters)


def test_graphs_and_guards_are_files_below_the_runs_folder(said: CompilerLog, tmp_path: Path) -> None:
    folder = tmp_path.parent / said.folder
    assert {"dynamo_output_graph", "dynamo_cpp_guards_str"} <= said.events.keys()
    assert sum(said.events.values()) == len(list(folder.iterdir())) - 1, "the index is the other one"
    first = min(folder.glob("*-dynamo_output_graph.py"))
    assert "l_x_ * 2" in first.read_text()


def test_what_the_compiler_said_is_bounded_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_FILE_CHARS", 100)
    monkeypatch.setattr(subject, "MAX_FOLDER_CHARS", 250)
    with CompilerTrace(folder_of(tmp_path, UNIT), lambda: "build"):
        recompile()
    log = compiler_log(tmp_path, UNIT)
    assert log is not None
    files = [file for file in (tmp_path.parent / log.folder).iterdir() if file.name != subject.INDEX]
    assert len(files) == 3
    assert all(len(file.read_text()) < 120 for file in files)
    assert log.left_out > 0


def test_an_index_that_a_dying_worker_cut_is_read_up_to_the_cut(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, UNIT)
    folder.mkdir(parents=True)
    line = json.dumps({"phase": "capture", "recompiles": "guard a"})
    (folder / subject.INDEX).write_text(f"{line}\n{line[:20]}")
    log = compiler_log(tmp_path, UNIT)
    assert log is not None
    assert log.recompiles == ["in capture: guard a"]


def test_nothing_compiled_is_no_log(tmp_path: Path) -> None:
    with CompilerTrace(folder_of(tmp_path, UNIT), lambda: "build"):
        pass
    assert compiler_log(tmp_path, UNIT) is None
    assert not list(tmp_path.iterdir())


def run_of(folder: Path, monkeypatch: pytest.MonkeyPatch, fate: Fate) -> LaneRecord:
    """A unit that recompiles and ends with `fate`, as a worker runs it."""
    monkeypatch.syspath_prepend(str(HERE))
    for name, value in fake_environment().items():
        monkeypatch.setenv(name, value)
    profile = fake_profile(folder, level="[0]")
    unit: Unit = make_plan(profile, "cpu", find_engine).units[0]
    stacks = str(folder / "logs" / "worker-001.stack")
    job = Job(profile=profile, device="cpu", units=[], events_fd=-1, stack_file=stacks, parent=os.getpid())
    run = UnitRun(job, unit, lambda event: None)

    def execute() -> LaneRecord:
        run.clock.enter(Phase.CAPTURE)
        recompile()
        return run._record(fate=fate)

    monkeypatch.setattr(run, "_execute", execute)
    return run.execute()


@pytest.mark.parametrize("fate", [Fate.WRONG, Fate.CRASHED, Fate.COST_CHANGED])
def test_a_red_units_record_carries_it_through_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: Fate
) -> None:
    record = msgspec.json.decode(msgspec.json.encode(run_of(tmp_path, monkeypatch, fate)), type=LaneRecord)
    assert record.compiler is not None
    assert record.compiler.recompiles[0].startswith("in capture: ")
    assert (tmp_path / record.compiler.folder / subject.INDEX).is_file()


def test_a_green_unit_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_of(tmp_path, monkeypatch, Fate.MEASURED).compiler is None
    assert not list((tmp_path / "logs").rglob("*.*"))


def test_explain_prints_the_guard_the_break_and_where_the_files_are(said: CompilerLog) -> None:
    fields: dict[str, Any] = {"cell": "a", "axes": {}, "lane": "serving", "dtype": "float32", "phase": Phase.CAPTURE}
    out = io.StringIO()
    lane = LaneRecord(fate=Fate.WRONG, compiler=said, **fields)
    _print_compiler(lane, Console(file=out, width=200))
    text = out.getvalue()
    assert "expected 4, actual 5" in text
    assert said.folder in text
    assert Path(__file__).name in text
