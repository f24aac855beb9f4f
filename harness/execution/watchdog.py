"""Ends a worker that hangs, by wall clock and whatever it prints, and says where it hung.

asv's limit is on silence: a capture that hangs while a thread prints once a second is never ended. And killing only the
process that was started leaves its compile workers holding the device.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil

from harness.profile import TimeLimits
from harness.records import Phase

STACK_BYTES = 64 * 1024


def phase_limits_s(limits: TimeLimits) -> dict[Phase, float]:
    """Seconds per phase. An engine that does not say when it compiles does so in `capture`, which has both limits."""
    return {
        Phase.START: limits.build_s,
        Phase.IMPORT: limits.build_s,
        Phase.BUILD: limits.build_s,
        Phase.COMPILE: limits.compile_s,
        Phase.WARMUP: limits.compile_s,
        Phase.CAPTURE: limits.compile_s + limits.capture_s,
        Phase.REPLAY: limits.replay_s,
        Phase.TIMING: limits.timing_s,
        Phase.TEARDOWN: limits.teardown_s,
    }


class PhaseTimer:
    """Seconds that one unit spent in each phase. Entering a phase again goes on counting: no loop resets its limit."""

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = phase_limits_s(limits)
        self.restart()

    def restart(self, phase: Phase = Phase.START) -> None:
        """A new unit begins."""
        self._spent: dict[Phase, float] = defaultdict(float)
        self.phase = phase
        self._since = time.monotonic()

    def enter(self, phase: Phase) -> None:
        now = time.monotonic()
        self._spent[self.phase] += now - self._since
        self.phase, self._since = phase, now

    @property
    def limit_s(self) -> float:
        return self._limits[self.phase]

    @property
    def overdue(self) -> bool:
        return self._spent[self.phase] + time.monotonic() - self._since > self.limit_s

    def seconds(self) -> dict[str, float]:
        self.enter(self.phase)
        return {phase.value: round(spent, 4) for phase, spent in self._spent.items()}


def dump_stacks(pid: int, stack_file: Path, patience_s: float = 2.0) -> str:
    """Ask a live worker for every thread's stack; what it could still write is returned."""
    before = _size(stack_file)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + patience_s
    size = before
    while time.monotonic() < deadline:
        time.sleep(0.05)
        grown = _size(stack_file)
        if grown == size > before:
            break
        size = grown
    return read_stacks(stack_file)


def read_stacks(stack_file: Path) -> str:
    """The last stacks that the worker wrote: a dump on request, or what a fault left."""
    with suppress(OSError):
        text = stack_file.read_bytes()[-STACK_BYTES:].decode(errors="replace")
        return text.partition("\nExtension modules:")[0].strip()  # the names of a hundred libraries explain nothing
    return ""


def kill_tree(pid: int) -> None:
    """End a worker, its process group and every descendant, those in other sessions too. It must not be reaped yet."""
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        family = psutil.Process(pid).children(recursive=True)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for process in family:
        with suppress(psutil.Error):
            process.kill()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
