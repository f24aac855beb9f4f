"""Executes units in worker processes on this machine, one at a time on each GPU, so that nothing shares the device with
a timing.

One cell that took the whole sweep down with it lost a night. Whatever a worker does, each of its units ends in one
record: measured, or crashed or hung with its phase, its stack and its last output.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Protocol

import msgspec

from harness.comparison.sides import Side
from harness.compiler_log import compiler_log
from harness.errors import HarnessFault
from harness.execution.locks import held
from harness.execution.process import WorkerProcess, how_it_ended
from harness.execution.slots import Slot
from harness.execution.watchdog import PhaseTimer, dump_stacks, read_stacks
from harness.job import BAD_JOB, Entered, Event, Finished, Measured, Started
from harness.plan import Unit, batches, in_seeded_order
from harness.profile import Profile
from harness.records import Fate, LaneRecord, Phase
from harness.soundness import plain
from harness.store import unit_id
from harness.verdicts import GREEN, first_fate

POLL_S = 0.2


class Listener(Protocol):
    """Whoever shows progress."""

    def phase(self, unit: str, phase: Phase) -> None: ...
    def recorded(self, record: LaneRecord) -> None: ...


class LocalExecutor:
    """Runs units and hands every record to `keep` as soon as it is certain. `executed` counts what it handed over."""

    def __init__(
        self,
        profile: Profile,
        device: str,
        logs: Path,
        keep: Callable[[LaneRecord], None],
        listener: Listener,
        side: Side | None = None,
        slots: Sequence[Slot] = (),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`slots` are where workers run, one at a time in each; without them, in one on `device`."""
        self.profile, self.device, self.logs, self.side = profile, device, logs, side
        self.slots = list(slots) or [Slot(device, device)]
        self._keep, self._listener, self._say = keep, listener, say
        self._lock, self._stop = threading.RLock(), threading.Event()
        self.executed = 0
        self._workers = len(list(logs.glob("worker-*.log")))  # a resumed run goes on counting

    def run(self, units: Iterable[Unit]) -> None:
        groups = batches(units, self.profile.isolation)
        queue = deque(in_seeded_order(groups, self.profile.numerics.seed))
        if len(self.slots) == 1:
            self._serve(self.slots[0], queue)
        else:
            self._serve_all(queue)

    def _serve_all(self, queue: deque[list[Unit]]) -> None:
        """A thread for each slot. The first thing that ends one of them badly, or a Ctrl-C, ends them all."""
        with ThreadPoolExecutor(len(self.slots), "slot") as threads:
            served = [threads.submit(self._serve, slot, queue) for slot in self.slots]
            try:
                for done in as_completed(served):
                    done.result()
            except BaseException:
                self._stop.set()
                raise

    def _serve(self, slot: Slot, queue: deque[list[Unit]]) -> None:
        """Run what is queued on one slot, as long as something is and nothing went wrong elsewhere."""
        with held(slot, lambda: bool(queue) and not self._stop.is_set(), self._say) as mine:
            while mine and not self._stop.is_set():
                try:
                    batch = queue.popleft()
                except IndexError:
                    return
                left = self._run_worker(batch, slot)
                if len(left) == len(batch) and not self._stop.is_set():
                    raise HarnessFault(
                        f"a worker ended without an outcome for any of its units, the first was {batch[0].id}"
                    )
                if left:
                    queue.appendleft(left)

    def _run_worker(self, units: list[Unit], slot: Slot) -> list[Unit]:
        """Run one worker to its end; returns the units that it did not come to."""
        with self._lock:
            self._workers += 1
            number = self._workers
        self.logs.mkdir(parents=True, exist_ok=True)
        worker = WorkerProcess(units, self.profile, self.device, self.logs, number, self.side, slot)
        watch = _Watch(worker, units, self.profile, self._report, self._stop.is_set)
        try:
            for record in watch.records():
                self._record(msgspec.structs.replace(record, slot=slot.name, numa_node=slot.node))
        finally:
            worker.close()
        return [unit for unit in units if unit.id not in watch.done]

    def _record(self, record: LaneRecord) -> None:
        with self._lock:  # one file, one line at a time
            self._keep(record)
            self.executed += 1
            self._listener.recorded(record)

    def _report(self, unit: str, phase: Phase) -> None:
        with self._lock:
            self._listener.phase(unit, phase)


class _Watch:
    """Follows one worker: turns its events into records, and its silence, its hang or its death into records too."""

    def __init__(
        self,
        worker: WorkerProcess,
        units: list[Unit],
        profile: Profile,
        report: Callable[[str, Phase], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.worker, self._report, self._stopped = worker, report, stopped
        self.units = {unit.id: unit for unit in units}
        self.done: set[str] = set()
        self.timer = PhaseTimer(profile.time_limits)
        self._running = units[0]  # a worker that dies at birth is charged to the first
        self._started = ""
        self._measured: LaneRecord | None = None
        self._held: LaneRecord | None = None  # closed, and not certain until the next starts or the process ends

    def records(self) -> Iterable[LaneRecord]:
        worker = self.worker
        while not worker.ended():
            yield from self._take(worker.poll(POLL_S))
            if self._stopped():
                return
            if self.timer.overdue and not worker.ended():
                yield self._hung()
                return
        yield from self._take(worker.rest())
        if worker.exit_code == BAD_JOB:
            raise HarnessFault(f"a worker could not read its job: {worker.output.tail()}")
        yield from self._last()

    def _take(self, events: Iterable[Event]) -> Iterable[LaneRecord]:
        for event in events:
            match event:
                case Started(unit, at):
                    if self._held is not None:
                        yield self._certain(self._held)
                    self._held = None
                    self._running, self._started, self._measured = self.units[unit], at, None
                    self.timer.restart()
                case Entered(unit, phase):
                    self.timer.enter(phase)
                    self._report(unit, phase)
                case Measured(record):
                    self._measured = record
                case Finished(record):
                    self._measured, self._held = None, self._with_output(record)
                    self.timer.restart(Phase.TEARDOWN)

    def _last(self) -> Iterable[LaneRecord]:
        """The process is gone: well, in its exit, or in the middle of a unit."""
        if self._held is not None:
            if self.worker.exit_code == 0:
                yield self._certain(self._held)
            else:
                yield self._died_closing(self._held, "after the cell was closed")
        elif self._measured is not None:
            yield self._died_closing(self._measured, "while closing the cell")
        elif self._running.id not in self.done:
            yield self._died()

    def _with_output(self, record: LaneRecord) -> LaneRecord:
        if record.fate not in (Fate.CRASHED, Fate.TEARDOWN_CRASHED):
            return record
        self.worker.output.read()  # what the unit printed was in the pipe before its last event
        return msgspec.structs.replace(record, output_tail=self.worker.output.tail())

    def _certain(self, record: LaneRecord) -> LaneRecord:
        """The record to keep. A worker that died left behind what the compiler had said by then."""
        unit = unit_id(record.cell, record.lane, record.launch)
        self.done.add(unit)
        if record.fate in GREEN or record.compiler is not None:
            return record
        return msgspec.structs.replace(record, compiler=compiler_log(self.worker.stack_file.parent, unit))

    def _died(self) -> LaneRecord:
        ended = how_it_ended(self.worker.exit_code or 0)
        reason = f"{ended} in phase {self.timer.phase.value}"
        return self._certain(self._unfinished(Fate.CRASHED, reason, read_stacks(self.worker.stack_file)))

    def _died_closing(self, record: LaneRecord, when: str) -> LaneRecord:
        """What was measured stays in the record; a fate that is worse than a teardown crash stays too."""
        reason = f"{how_it_ended(self.worker.exit_code or 0)} {when}"
        if self.done:
            reason += f"; this process had also executed {', '.join(sorted(self.done))}"
        return self._certain(
            _worse(
                record, Fate.TEARDOWN_CRASHED, reason, self.worker.output.tail(), read_stacks(self.worker.stack_file)
            )
        )

    def _hung(self) -> LaneRecord:
        """Takes the stacks, then ends the worker."""
        phase, limit_s = self.timer.phase, self.timer.limit_s
        stack = dump_stacks(self.worker.pid, self.worker.stack_file)
        self.worker.output.read()
        reason = f"phase {phase.value} took longer than its limit of {limit_s:g} s"
        record = self._held or self._measured
        if record is not None:
            return self._certain(_worse(record, Fate.HUNG, reason, self.worker.output.tail(), stack))
        return self._certain(self._unfinished(Fate.HUNG, reason, stack))

    def _unfinished(self, fate: Fate, reason: str, stack: str) -> LaneRecord:
        unit, seconds = self._running, self.timer.seconds()
        return LaneRecord(
            cell=unit.cell.id,
            axes=plain(unit.cell.as_dict()),
            lane=unit.lane,
            launch=unit.launch,
            dtype=unit.dtype,
            fate=fate,
            phase=self.timer.phase,
            reason=reason,
            output_tail=self.worker.output.tail(),
            stack=stack,
            started=self._started,
            seconds=round(sum(seconds.values()), 4),
            phase_seconds=seconds,
            peak_rss_mib=self.worker.peak_rss_mib,
            worker=self.worker.pid,
        )


def _worse(record: LaneRecord, fate: Fate, reason: str, output_tail: str, stack: str) -> LaneRecord:
    """`record` with one more thing that went wrong; the fate that comes first holds, and neither reason is lost."""
    holds = first_fate([record.fate, fate])
    if record.reason and holds is record.fate:
        reason = f"{record.reason}; then {reason}"
    elif record.reason:
        reason = f"{reason}; before that {record.fate.value}: {record.reason}"
    return msgspec.structs.replace(
        record,
        fate=holds,
        phase=Phase.TEARDOWN,
        reason=reason,
        output_tail=output_tail,
        stack="\n".join(filter(None, [record.stack, stack])),
    )
