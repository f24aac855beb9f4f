"""One bad cell costs one cell. A segfault in the second of sixteen lost the other fourteen, a capture that hung while
it printed was never ended, and a green body that aborted at exit counted as green.

One night with every kind of misbehaviour is run once, in real worker processes, and looked at from all sides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.errors import HarnessFault
from harness.execution.local import LocalExecutor
from harness.execution.output import TAIL_LINES, WorkerOutput
from harness.execution.process import WorkerProcess, how_it_ended
from harness.execution.watchdog import PhaseTimer, phase_limits_s
from harness.plan import Plan, make_plan
from harness.plugins import find_engine
from harness.profile import TimeLimits
from harness.records import Fate, LaneRecord, Phase
from suites.instrument.fake_engine import GUARD
from suites.instrument.spine import HERE, fake_environment, fake_profile

NIGHT = {
    "level=0,mode=TR_HYBRID": "raise in capture",
    "level=1,mode=TR_HYBRID": "segfault in capture",
    "level=1,mode=FULL": "vanish in capture",
    "level=2,mode=NONE": "hang in capture",
    "level=2,mode=TR_HYBRID": "segfault in close",
    "level=2,mode=FULL": "wrong, then segfault in close",
    "level=3,mode=FULL": "abort at exit",
}


class Seen:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, Phase]] = []
        self.records: list[LaneRecord] = []

    def phase(self, unit: str, phase: Phase) -> None:
        self.phases.append((unit, phase))

    def recorded(self, record: LaneRecord) -> None:
        self.records.append(record)


class Night:
    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self.kept = folder, Seen(), list[LaneRecord]()
        profile = fake_profile(folder, level="[0, 1, 2, 3]", mode='["NONE", "TR_HYBRID", "FULL"]')
        self.plan: Plan = make_plan(profile, "cpu", find_engine)
        self.executor = LocalExecutor(profile, "cpu", folder / "logs", self.kept.append, self.seen)
        self.executor.run(self.plan.units)

    def record(self, level: int, mode: str) -> LaneRecord:
        (found,) = [r for r in self.kept if (r.axes["level"], r.axes["mode"]) == (level, mode)]
        return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("night")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        for name, value in fake_environment(NIGHT, folder / "journal").items():
            patch.setenv(name, value)
        yield folder


@pytest.fixture(scope="module")
def night(environment: Path) -> Night:
    return Night(environment)


def test_every_unit_ends_in_one_record_whatever_the_others_do(night: Night) -> None:
    assert sorted(f"{r.cell}#{r.lane}" for r in night.kept) == sorted(unit.id for unit in night.plan.units)
    assert night.executor.executed == len(night.plan.units) == 12
    assert night.seen.records == night.kept


def test_a_unit_that_ended_badly_is_not_tried_again_and_no_other_is_tried_twice(night: Night) -> None:
    opened = (night.folder / "journal").read_text().split()
    assert len(opened) == len(set(opened)) == 12


def test_the_cells_around_a_bad_one_are_measured(night: Night) -> None:
    measured = {(r.axes["level"], r.axes["mode"]) for r in night.kept if r.fate is Fate.MEASURED}
    assert measured == {(0, "NONE"), (0, "FULL"), (1, "NONE"), (3, "NONE"), (3, "TR_HYBRID")}


def test_a_cell_that_raises_is_reported_with_its_phase_its_traceback_and_its_last_output(night: Night) -> None:
    record = night.record(0, "TR_HYBRID")
    assert (record.fate, record.phase) == (Fate.CRASHED, Phase.CAPTURE)
    assert record.reason.endswith("operation not permitted when stream is capturing second line")
    assert "RuntimeError" in record.stack
    lines = record.output_tail.splitlines()
    assert len(lines) == TAIL_LINES
    assert lines[-1].startswith("line 59 of engine=fake")


def test_what_the_compiler_had_said_survives_the_worker_that_heard_it(night: Night) -> None:
    said = night.record(1, "TR_HYBRID").compiler
    assert said is not None
    assert said.recompiles == [f"in capture: {GUARD}"]
    closing = night.record(2, "FULL").compiler
    assert closing is not None
    assert closing.recompiles == [f"in teardown: {GUARD}"]
    assert all(record.compiler is None for record in night.kept if record.fate is Fate.MEASURED)


def test_a_cell_that_segfaults_is_reported_with_the_signal_and_the_stack_it_died_in(night: Night) -> None:
    record = night.record(1, "TR_HYBRID")
    assert (record.fate, record.phase) == (Fate.CRASHED, Phase.CAPTURE)
    assert record.reason == "the process was killed by SIGSEGV in phase capture"
    assert "Fatal Python error: Segmentation fault" in record.stack
    assert "in _segfault" in record.stack
    assert "Extension modules" not in record.stack
    assert record.output_tail.endswith("about to touch freed memory")
    assert record.started


def test_a_process_that_ends_quietly_in_the_middle_of_a_cell_is_a_crash(night: Night) -> None:
    record = night.record(1, "FULL")
    assert (record.fate, record.phase) == (Fate.CRASHED, Phase.CAPTURE)
    assert record.reason == "the process ended with exit code 0 in phase capture"


def test_a_hang_that_prints_is_ended_by_the_clock_with_the_line_it_hung_in(night: Night) -> None:
    record = night.record(2, "NONE")
    assert (record.fate, record.phase) == (Fate.HUNG, Phase.CAPTURE)
    assert record.reason == "phase capture took longer than its limit of 1.5 s"
    assert "in _hang_and_chat" in record.stack
    assert record.output_tail.endswith("still capturing")
    assert record.phase_seconds["capture"] >= 1.5


def test_nothing_that_a_hung_worker_started_outlives_it(night: Night) -> None:
    child = int((night.folder / "journal.child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert not psutil.pid_exists(night.record(2, "NONE").worker)


def test_a_crash_while_closing_keeps_what_was_measured(night: Night) -> None:
    record = night.record(2, "TR_HYBRID")
    assert (record.fate, record.phase) == (Fate.TEARDOWN_CRASHED, Phase.TEARDOWN)
    assert record.reason == "the process was killed by SIGSEGV while closing the cell"
    assert [gate.gate for gate in record.gates] == ["G1", "closed.copies"]
    assert record.latency


def test_a_wrong_cell_that_also_crashes_while_closing_stays_wrong_and_says_both(night: Night) -> None:
    record = night.record(2, "FULL")
    assert record.fate is Fate.WRONG
    assert "G3.rows" in record.reason
    assert "then the process was killed by SIGSEGV while closing the cell" in record.reason


def test_an_abort_at_exit_is_not_green_and_names_what_else_the_process_ran(night: Night) -> None:
    record = night.record(3, "FULL")
    assert record.fate is Fate.TEARDOWN_CRASHED
    assert record.reason.startswith("the process was killed by SIGABRT after the cell was closed")
    assert night.record(3, "TR_HYBRID").cell in record.reason


def test_the_listener_hears_of_every_phase(night: Night) -> None:
    unit = f"{night.record(3, 'NONE').cell}#serving"
    heard = [phase for name, phase in night.seen.phases if name == unit]
    assert heard[:4] == [Phase.IMPORT, Phase.BUILD, Phase.CAPTURE, Phase.REPLAY]
    assert heard[-1] is Phase.TEARDOWN


def test_every_worker_leaves_its_log(night: Night) -> None:
    logs = sorted((night.folder / "logs").glob("worker-*.log"))
    assert [log.name for log in logs[:2]] == ["worker-001.log", "worker-002.log"]
    assert "== unit engine=fake" in logs[0].read_text()


def test_closing_a_worker_ends_it_in_the_middle_of_a_cell(environment: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_ENGINE", '{"level=0": "wait in capture"}')
        profile = fake_profile(tmp_path, compile_s="60.0")
        units = list(make_plan(profile, "cpu", find_engine).units)
        worker = WorkerProcess(units, profile, "cpu", tmp_path, 1)
        deadline = time.monotonic() + 60
        while "line 59" not in worker.output.tail() and time.monotonic() < deadline:
            list(worker.poll(0.1))
        assert not worker.ended()
        worker.close()
    assert worker.exit_code == -9
    assert not psutil.pid_exists(worker.pid)


def test_a_worker_that_leaves_no_outcome_is_a_fault_of_the_harness(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = fake_profile(tmp_path)
    plan = make_plan(profile, "cpu", find_engine)
    executor = LocalExecutor(profile, "cpu", tmp_path, lambda record: None, Seen())
    monkeypatch.setattr(executor, "_run_worker", lambda units, slot: units)
    with pytest.raises(HarnessFault, match="without an outcome for any of its units"):
        executor.run(plan.units)


def test_entering_a_phase_again_does_not_give_it_more_time() -> None:
    timer = PhaseTimer(TimeLimits(replay_s=0.05, timing_s=10.0))
    for _ in range(10):
        timer.enter(Phase.REPLAY)
        time.sleep(0.01)
        assert not (timer.phase is Phase.TIMING and timer.overdue)
        timer.enter(Phase.TIMING)
    timer.enter(Phase.REPLAY)
    assert timer.overdue
    timer.restart()
    assert not timer.overdue


def test_every_phase_has_a_limit() -> None:
    limits = phase_limits_s(TimeLimits(compile_s=5.0, capture_s=3.0))
    assert set(limits) == set(Phase)
    assert limits[Phase.CAPTURE] == 8.0, "an engine that does not say when it compiles does so in its capture"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "the process ended with exit code 0"),
        (-11, "the process was killed by SIGSEGV"),
        (-9, "the process was killed by SIGKILL, as the kernel does when memory runs out"),
        (-250, "the process was killed by signal 250"),
    ],
)
def test_how_a_process_ended_is_said_in_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words


def test_a_flood_of_output_is_bounded_in_memory_and_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.execution.output.LOG_BYTES", 1000)
    read, write = os.pipe()
    os.set_blocking(read, False)
    output = WorkerOutput(read, tmp_path / "log")
    for chunk in (b"== unit one\nold\n", b"== unit two\n", b"x" * 9000 + b"\n", b"tail", b" end"):
        os.write(write, chunk)
        assert output.read()
    os.close(write)
    assert not output.read()
    first, last = output.tail().splitlines()
    assert first == "x" * 2000
    assert last == "tail end"
    output.close()
    assert (tmp_path / "log").stat().st_size == 1000


def test_a_reader_of_a_flood_comes_back_to_look_at_the_clock(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    output = WorkerOutput(read, tmp_path / "log")
    os.write(write, b"y" * 60000)
    assert output.read(most=1)
    os.write(write, b"\nz")
    assert output.read()
    assert output.tail().endswith("z")
    os.close(write)
    output.close()
