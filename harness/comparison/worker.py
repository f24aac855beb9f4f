"""`python -m harness.comparison.worker FD`: one side of a comparison, alive beside the other and idle until asked.

Timing one revision for ten minutes and then the other compared two rooms' temperatures. Both processes stay up, and
this one runs only while the other waits.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from harness.comparison.messages import (
    REQUESTS,
    Begin,
    Block,
    CloseCell,
    Closed,
    OpenCell,
    Opened,
    Ready,
    Refused,
    Reply,
    Timed,
)
from harness.comparison.settling import settle
from harness.comparison.sides import ENGINE_PACKAGE
from harness.job import Job
from harness.plan import Unit, kind_of
from harness.plugins import find_engine
from harness.soundness import plain
from harness.timing.calibration import idle_to_idle_us
from harness.timing.conditions import timed_blocks, watch_for
from harness.worker import UnitRun, die_with

Clock = Callable[[], int]
#: Steps of a block of the warm-up, at least.
WARM_UP_BLOCK = 5
#: How often one block may be timed again.
MOST_AGAIN = 2
#: What an engine that lacks a name of the adaptor's raises while it is imported.
_TOO_OLD = (ImportError, AttributeError)


class LiveCell:
    """One opened cell: its session, and one batch for each bucket."""

    def __init__(self, unit: Unit, begin: Begin, clock: Clock = time.perf_counter_ns) -> None:
        import torch

        from harness.probes.base import ProbeContext
        from harness.probes.calibration import calibrations
        from harness.probes.latency import full_batches

        self._clock = clock
        job = Job(
            profile=begin.profile, device=begin.device, units=[], events_fd=-1, stack_file="", parent=begin.parent
        )
        spec = UnitRun(job, unit, lambda event: None).spec()
        self.session = find_engine(str(unit.cell["engine"])).open(unit.cell, spec)
        capture = plain(self.session.capture())
        context = ProbeContext(self.session, unit.cell, spec, begin.profile, unit.lane, kind_of(begin.device), capture)
        batches = full_batches(context)
        self._batches = dict(batches)
        self.phase = batches[0][1].phase.value
        device = kind_of(begin.device)
        if ":" in begin.device:  # the spins and the sensors are the current GPU's
            torch.cuda.set_device(begin.device)
        self._timer = calibrations(device, self.session.synchronize, clock)[0]
        self._watch = watch_for(device)

    def opened(self, warmup_steps: int) -> Opened:
        gc.collect()
        gc.freeze()  # what lives as long as the cell is not walked again between blocks: it took longer than they did
        for bucket in self._batches:
            settle(partial(self._block, bucket, max(WARM_UP_BLOCK, warmup_steps)))
        refused = "" if self._timer.ok else f"nothing is timed here: {self._timer}"
        return Opened(self.phase, list(self._batches), plain(self.session.artefacts()), refused)

    def time(self, bucket: int, steps: int) -> Timed:
        """One block, taken again while the machine spoils it, within bounds."""
        (samples_us,), seen = timed_blocks([bucket], lambda b: self._block(b, steps), self._watch, MOST_AGAIN)
        return Timed(samples_us, list(seen.again.elements()), list(seen.kept))

    def _block(self, bucket: int, steps: int) -> list[float]:
        """Microseconds of each step of arm R, from an idle device to an idle device, less what the timer reads of
        nothing.
        """
        from harness.engines.base import Arm

        session, batch = self.session, self._batches[bucket]
        gc.disable()
        try:
            return [
                idle_to_idle_us(lambda: session.step(batch, Arm.R), session.synchronize, self._clock)
                - self._timer.offset_us
                for _ in range(steps)
            ]
        finally:
            gc.enable()


class Worker:
    """Answers requests until its input ends."""

    def __init__(self, begin: Begin) -> None:
        self.begin = begin
        self.cell: LiveCell | None = None

    def answer(self, request: Any) -> Reply:
        import torch

        with torch.inference_mode():
            match request:
                case OpenCell(unit):
                    self.cell = LiveCell(unit.unit(), self.begin)
                    return self.cell.opened(self.begin.profile.timing.warmup_steps)
                case Block(bucket, steps) if self.cell is not None:
                    return self.cell.time(bucket, steps)
                case CloseCell() if self.cell is not None:
                    self.cell.session.close()
                    gc.unfreeze()
                    self.cell = None
                    return Closed()
        raise ValueError(f"{type(request).__name__} was asked while no cell is open")


def imported(begin: Begin) -> Reply:
    """Import every engine that the profile names, from where this side's must come from."""
    try:
        versions: dict[str, str] = {}
        for name in begin.profile.axes.engine:
            versions |= dict(find_engine(name).versions())
    except Exception as error:  # `find_engine` wraps what a registered engine's import raised
        cause = error.__cause__ or error
        return _refused(error, too_old=isinstance(cause, _TOO_OLD))
    spec = importlib.util.find_spec(ENGINE_PACKAGE)
    if spec is not None and spec.origin and not Path(spec.origin).is_relative_to(begin.root):
        return Refused(f"{ENGINE_PACKAGE} was imported from elsewhere than the side's own revision", spec.origin)
    return Ready(plain(versions))


def _refused(error: BaseException, too_old: bool = False) -> Refused:
    first_line = next(iter(str(error).splitlines()), "")
    return Refused(f"{type(error).__name__}: {first_line}", "".join(traceback.format_exception(error)), too_old)


def main() -> int:
    begin = REQUESTS.decode(sys.stdin.buffer.readline())
    assert isinstance(begin, Begin)
    die_with(begin.parent)
    with os.fdopen(int(sys.argv[1]), "wb", buffering=0) as pipe:

        def send(reply: Reply) -> None:
            pipe.write(msgspec.json.encode(reply) + b"\n")

        first = imported(begin)
        send(first)
        worker = Worker(begin)
        while isinstance(first, Ready) and (line := sys.stdin.buffer.readline()):
            try:
                send(worker.answer(REQUESTS.decode(line)))
            except BaseException as error:  # whatever an engine raises ends this side, and says why
                send(_refused(error))
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
