"""A worker must say what it was doing before it dies: "exit code -11" after forty minutes explained nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.job import BAD_JOB, Entered, Event, Finished, Job, Measured, Started, UnitSpec
from harness.plan import Unit, make_plan
from harness.plugins import find_engine, find_probes, registered_engines
from harness.records import Fate, LaneRecord, Phase, Status
from harness.worker import PhaseClock, run_job
from suites.instrument.spine import HERE, fake_environment, fake_profile


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The fake engine and its probes, known to this process."""
    monkeypatch.syspath_prepend(str(HERE))
    for name, value in fake_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("harness.worker._engines", {})
    return monkeypatch


def events_of(folder: Path, behaviours: dict[str, str], fake: pytest.MonkeyPatch) -> list[Event]:
    """Everything a worker would send, with the job run in this process."""
    fake.setenv("FAKE_ENGINE", fake_environment(behaviours)["FAKE_ENGINE"])
    profile = fake_profile(folder, level="[0]")
    plan = make_plan(profile, "cpu", find_engine)
    units = [UnitSpec.of(unit) for unit in plan.units]
    job = Job(profile=profile, device="cpu", units=units, events_fd=-1, stack_file="", parent=os.getpid())
    events: list[Event] = []
    run_job(job, events.append)
    return events


def records(events: list[Event]) -> list[LaneRecord]:
    return [event.record for event in events if isinstance(event, Finished)]


def test_a_unit_goes_through_its_phases_in_order_and_is_handed_on_before_it_closes(
    tmp_path: Path, fake: pytest.MonkeyPatch
) -> None:
    events = events_of(tmp_path, {}, fake)
    first = events[: events.index(next(e for e in events if isinstance(e, Finished))) + 1]
    assert isinstance(first[0], Started)
    phases = [event.phase for event in first if isinstance(event, Entered)]
    assert phases == [
        Phase.IMPORT,
        Phase.BUILD,
        Phase.CAPTURE,
        Phase.REPLAY,
        Phase.REPLAY,  # the probes say it themselves
        Phase.TEARDOWN,
    ]
    measured = next(i for i, event in enumerate(first) if isinstance(event, Measured))
    assert measured < first.index(Entered(first[0].unit, Phase.TEARDOWN))


def test_a_record_holds_everything_that_was_learnt(tmp_path: Path, fake: pytest.MonkeyPatch) -> None:
    record = records(events_of(tmp_path, {}, fake))[0]
    assert (record.fate, record.lane, record.dtype) == (Fate.MEASURED, "serving", "bfloat16")
    assert record.axes["ladder"] == [1, 2]
    assert record.capture == {"buckets": {"decode": [1, 2]}, "segments": {"2": 3}, "capture_s": "nan"}
    assert record.counters == {"steps": 3, "['tuple', 'key']": "inf"}
    assert record.artefacts == {"graph": "abc"}
    assert [item.samples_us for item in record.latency] == [[1.0, 2.0, 3.0]]
    assert set(record.phase_seconds) >= {"build", "capture", "replay", "teardown"}
    assert abs(sum(record.phase_seconds.values()) - record.seconds) < 0.05
    assert record.peak_rss_mib > 10
    assert record.worker == os.getpid()


@pytest.mark.parametrize(
    ("behaviour", "fate", "phase", "reason"),
    [
        ("raise in open", Fate.CRASHED, Phase.BUILD, "OSError in phase build: weights.gguf is cut short"),
        ("raise in capture", Fate.CRASHED, Phase.CAPTURE, "RuntimeError in phase capture: operation not permitted"),
        ("sys.exit in capture", Fate.CRASHED, Phase.CAPTURE, "SystemExit in phase capture: 0"),
        ("raise in close", Fate.TEARDOWN_CRASHED, Phase.TEARDOWN, "RuntimeError in phase teardown"),
    ],
)
def test_whatever_a_unit_raises_ends_in_its_record_and_ends_the_worker(
    tmp_path: Path, fake: pytest.MonkeyPatch, behaviour: str, fate: Fate, phase: Phase, reason: str
) -> None:
    found = records(events_of(tmp_path, {"mode=NONE": behaviour}, fake))
    assert len(found) == 1, "the cell after it must be left to a fresh worker"
    assert (found[0].fate, found[0].phase) == (fate, phase)
    assert found[0].reason.startswith(reason)
    assert "\n" not in found[0].reason
    assert "fake_engine.py" in found[0].stack
    assert "Traceback" in found[0].stack


def test_what_was_measured_is_kept_when_closing_raises(tmp_path: Path, fake: pytest.MonkeyPatch) -> None:
    record = records(events_of(tmp_path, {"mode=NONE": "raise in close"}, fake))[0]
    assert [gate.gate for gate in record.gates] == ["G1", "closed.copies"]
    assert record.latency


@pytest.mark.parametrize(
    ("behaviour", "fate"),
    [
        ("wrong", Fate.WRONG),
        ("nan", Fate.WRONG),
        ("downgraded", Fate.DOWNGRADED),
        ("cost changed", Fate.COST_CHANGED),
        ("downgraded and cost changed", Fate.DOWNGRADED),
        ("undecided", Fate.INCONCLUSIVE),
        ("no gates", Fate.NOT_RUN),
        ("only reports", Fate.NOT_RUN),
    ],
)
def test_failed_gates_decide_the_fate_and_the_next_cell_runs_in_the_same_worker(
    tmp_path: Path, fake: pytest.MonkeyPatch, behaviour: str, fate: Fate
) -> None:
    bad, good = records(events_of(tmp_path, {"mode=NONE": behaviour}, fake))
    assert bad.fate is fate
    assert bad.reason
    assert good.fate is Fate.MEASURED


def test_a_nan_reaches_the_record_as_a_failure_with_its_name(tmp_path: Path, fake: pytest.MonkeyPatch) -> None:
    record = records(events_of(tmp_path, {"mode=NONE": "nan"}, fake))[0]
    assert record.gates[0].status is Status.FAIL
    assert record.gates[0].evidence == {"measured": "nan"}


def test_phases_entered_twice_are_added_up() -> None:
    clock = PhaseClock("u", lambda event: None)
    for phase in (Phase.BUILD, Phase.REPLAY, Phase.BUILD, Phase.REPLAY):
        clock.enter(phase)
    seconds = clock.seconds()
    assert set(seconds) == {"start", "build", "replay"}
    assert sum(seconds.values()) <= clock.total + 0.001


def test_a_job_that_cannot_be_read_is_not_blamed_on_the_engine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness.worker"], input=b"{}", capture_output=True, env=fake_environment(), check=False
    )
    assert done.returncode == BAD_JOB
    assert b"harness.worker takes a job of the harness on stdin" in done.stderr


def test_a_unit_that_went_through_a_job_is_the_same_unit(tmp_path: Path) -> None:
    from suites.instrument.fake_engine import FakeEngine

    plan = make_plan(fake_profile(tmp_path), "cpu", lambda name: FakeEngine())
    again: list[Unit] = [UnitSpec.of(unit).unit() for unit in plan.units]
    assert again == list(plan.units)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("HARNESS_ENGINES", "mine", "'mine' is not of the form name=module:attribute"),
        ("HARNESS_ENGINES", "fake=no_such_module:X", "'no_such_module:X' cannot be loaded"),
        ("HARNESS_ENGINES", "fake=fake_engine:NoSuch", "'fake_engine:NoSuch' cannot be loaded"),
        ("HARNESS_PROBES", "fake_engine:nothing", "'fake_engine:nothing' cannot be loaded"),
    ],
)
def test_a_registration_that_leads_nowhere_is_named(
    fake: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    fake.setenv(variable, value)
    with pytest.raises(ValueError, match=message):
        find_probes() if variable == "HARNESS_PROBES" else find_engine("fake")


def test_several_engines_can_be_registered(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("HARNESS_ENGINES", "one=a:B, two=c.d:E,")
    assert registered_engines() == {"one": "a:B", "two": "c.d:E"}
