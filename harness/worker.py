"""`python -m harness.worker`: executes the units of one job in this process and reports every step of the way.

A crash, a hang or a green body followed by an abort at exit are ordinary outcomes on a GPU. So the process is
expendable, and all that it knows leaves it at once, over a descriptor of its own, phase by phase.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harness.compiler_log import CompilerTrace, compiler_log, dynamo_counters, folder_of
from harness.job import BAD_JOB, JOBS, OUTPUT_MARK, Entered, Event, Finished, Job, Measured, Started
from harness.plan import Unit, kind_of
from harness.plugins import find_engine, find_probes
from harness.records import Fate, LaneRecord, Phase
from harness.soundness import plain, sound_gate, sound_latencies
from harness.verdicts import GREEN, lane_fate

if TYPE_CHECKING:
    from harness.engines.base import Engine, EngineSession, SessionSpec
    from harness.probes.answers import Answers

Send = Callable[[Event], None]
_PR_SET_PDEATHSIG = 1


class PhaseClock:
    """Tells the watchdog which phase a unit is in, and keeps the seconds spent in each."""

    def __init__(self, unit: str, send: Send) -> None:
        self._unit, self._send = unit, send
        self._since = self._born = time.monotonic()
        self.phase = Phase.START
        self._seconds: dict[Phase, float] = {}

    def enter(self, phase: Phase) -> None:
        self._add()
        self.phase = phase
        self._send(Entered(self._unit, phase))

    def seconds(self) -> dict[str, float]:
        self._add()
        return {phase.value: round(spent, 4) for phase, spent in self._seconds.items()}

    @property
    def total(self) -> float:
        return round(time.monotonic() - self._born, 4)

    def _add(self) -> None:
        now = time.monotonic()
        self._seconds[self.phase] = self._seconds.get(self.phase, 0.0) + now - self._since
        self._since = now


class UnitRun:
    """One unit's life: open, capture, measure, close. Whatever it raises ends in its record."""

    def __init__(self, job: Job, unit: Unit, send: Send, answers: Answers | None = None) -> None:
        self.job, self.unit, self._send, self._answers = job, unit, send, answers
        self.clock = PhaseClock(unit.id, send)
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.raised = False

    def execute(self) -> LaneRecord:
        """The unit's record; what the compiler said of it comes with it where something failed."""
        logs = Path(self.job.stack_file).parent
        with CompilerTrace(folder_of(logs, self.unit.id), lambda: self.clock.phase.value) as trace:
            record = self._execute()
        if record.fate in GREEN:
            trace.discard()
            return record
        said = compiler_log(logs, self.unit.id, dynamo_counters())
        return msgspec.structs.replace(record, compiler=said)

    def _execute(self) -> LaneRecord:
        print(f"{OUTPUT_MARK}{self.unit.id}", flush=True)
        self._send(Started(self.unit.id, self.started))
        session: EngineSession | None = None
        try:
            self.clock.enter(Phase.IMPORT)
            engine = _engine(self.unit.cell["engine"])
            self.clock.enter(Phase.BUILD)
            session = engine.open(self.unit.cell, self.spec())
            record = self._measure(session)
        except BaseException as error:  # SystemExit too: an engine that calls sys.exit must not end the run
            self.raised = True
            record = self._failed(Fate.CRASHED, error)
        if session is None:
            return record
        self._send(Measured(record))
        return self._close(session, record)

    def _measure(self, session: EngineSession) -> LaneRecord:
        from harness.probes.base import ProbeContext

        self.clock.enter(Phase.CAPTURE)
        capture = plain(session.capture())
        self.clock.enter(Phase.REPLAY)
        job, unit = self.job, self.unit
        context = ProbeContext(
            session,
            unit.cell,
            self.spec(),
            job.profile,
            unit.lane,
            kind_of(job.device),
            capture,
            self.clock.enter,
            unit.launch,
            self._answers,
        )
        result = find_probes()(context)
        latency, faults = sound_latencies(result.latency)
        gates = [sound_gate(gate) for gate in [*result.gates, *faults]]
        fate, reason = lane_fate(gates)
        return self._record(
            fate=fate,
            reason=reason,
            gates=gates,
            latency=latency,
            counters=plain(result.counters),
            capture=capture,
            artefacts=plain(session.artefacts()),
        )

    def _close(self, session: EngineSession, record: LaneRecord) -> LaneRecord:
        """Close the session; a record that was already red stays what it was."""
        self.clock.enter(Phase.TEARDOWN)
        try:
            session.close()
        except BaseException as error:
            self.raised = True
            if record.fate in (Fate.MEASURED, Fate.TEARDOWN_CRASHED):
                torn = self._failed(Fate.TEARDOWN_CRASHED, error)
                record = msgspec.structs.replace(
                    record, fate=torn.fate, phase=torn.phase, reason=torn.reason, stack=torn.stack
                )
        return msgspec.structs.replace(record, phase_seconds=self.clock.seconds(), seconds=self.clock.total)

    def _failed(self, fate: Fate, error: BaseException) -> LaneRecord:
        text = "".join(traceback.format_exception(error))
        kind = type(error).__name__
        said = _in_one_line(error)
        reason = f"{kind} in phase {self.clock.phase.value}: {said}" if said else kind
        return self._record(fate=fate, reason=reason, stack=text)

    def _record(self, *, fate: Fate, **fields: Any) -> LaneRecord:
        unit = self.unit
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return LaneRecord(
            cell=unit.cell.id,
            axes=plain(unit.cell.as_dict()),
            lane=unit.lane,
            launch=unit.launch,
            dtype=unit.dtype,
            fate=fate,
            phase=self.clock.phase,
            started=self.started,
            seconds=self.clock.total,
            phase_seconds=self.clock.seconds(),
            peak_rss_mib=round(peak_kib / 1024, 1),
            worker=os.getpid(),
            **fields,
        )

    def spec(self) -> SessionSpec:
        from harness.engines.base import SessionSpec

        profile = self.job.profile
        # An engine may call `enter(Phase.COMPILE)` and the like, so that a hang is named more closely.
        options = {"enter": self.clock.enter, "seed": profile.numerics.seed}
        debug = {"debug_replay": True} if profile.debug_replay else {}
        return SessionSpec.of(profile, self.unit.dtype, self.job.device, **options, **debug)


#: Characters of an exception that a reason repeats; the whole of it stands in the record's stack.
REASON_LENGTH = 600


def _in_one_line(error: BaseException) -> str:
    """What the exception says with its notes. Its first line often names neither the operator nor the argument."""
    lines = [*str(error).splitlines(), *getattr(error, "__notes__", ())]
    said = " ".join(line.strip() for line in lines if line.strip())
    return said if len(said) <= REASON_LENGTH else f"{said[:REASON_LENGTH]} ..."


_engines: dict[str, Engine] = {}


def _engine(name: str) -> Engine:
    """One engine a process, so that its sessions can share weights and compiled code."""
    if name not in _engines:
        _engines[name] = find_engine(name)
    return _engines[name]


def _answers() -> Answers:
    from harness.probes.answers import Answers

    return Answers()


def run_job(job: Job, send: Send) -> None:
    """Execute the units in order, up to one that raises.

    What it leaves half built is no clean start for the next, so the worker ends and a fresh one is given the rest.
    """
    answers = _answers() if len(job.units) > 1 else None
    for spec in job.units:
        run = UnitRun(job, spec.unit(), send, answers)
        send(Finished(run.execute()))
        if run.raised:
            return


@contextmanager
def _event_channel(fd: int) -> Iterator[Send]:
    os.set_inheritable(fd, False)
    with os.fdopen(fd, "wb", buffering=0) as pipe:

        def send(event: Event) -> None:
            data = memoryview(msgspec.json.encode(event) + b"\n")
            while data:
                data = data[pipe.write(data) or 0 :]

        yield send


def die_with(parent: int) -> None:
    """End with the executor, even by kill -9; a hung worker left behind would hold the GPU and the lock on it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> int:
    try:
        job = JOBS.decode(sys.stdin.buffer.read())
        stacks = open(job.stack_file, "w")  # noqa: SIM115 - faulthandler needs it until the process ends
    except (msgspec.DecodeError, OSError) as error:
        print(f"harness.worker takes a job of the harness on stdin: {error}", file=sys.stderr)
        return BAD_JOB
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)
    die_with(job.parent)
    with suppress(BrokenPipeError), _event_channel(job.events_fd) as send:
        run_job(job, send)
    return 0


if __name__ == "__main__":
    sys.exit(main())
