"""One worker process as the executor sees it: its events, its output, its memory, and how it ended."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

import harness
from harness.comparison.sides import THREADS, Side
from harness.execution.output import WorkerOutput
from harness.execution.slots import Slot, bind
from harness.execution.watchdog import kill_tree
from harness.job import EVENTS, Event, Job, UnitSpec
from harness.plan import Unit
from harness.profile import Profile

_CHECKOUT = Path(harness.__file__).resolve().parents[1]


class WorkerProcess:
    """A started worker. Always `close()` it: that ends it, whatever it was doing."""

    def __init__(
        self,
        units: list[Unit],
        profile: Profile,
        device: str,
        folder: Path,
        number: int,
        side: Side | None = None,
        slot: Slot | None = None,
    ) -> None:
        """`side` names the interpreter and where the engine comes from; without it both are this process's own. `slot`
        is the GPU that the worker is let see, and the CPUs beside it.
        """
        slot = slot or Slot(device, device)
        self.stack_file = folder / f"worker-{number:03d}.stack"
        self._events, events_write = os.pipe()
        output, output_write = os.pipe()
        job = Job(
            profile=profile,
            device=slot.device,
            units=[UnitSpec.of(unit) for unit in units],
            events_fd=events_write,
            stack_file=str(self.stack_file),
            parent=os.getpid(),
        )
        try:
            self._process = subprocess.Popen(
                # -P: a folder that happens to hold another engine must not come first on the path
                [side.python if side else sys.executable, "-P", "-u", "-m", "harness.worker"],
                stdin=subprocess.PIPE,
                stdout=output_write,
                stderr=output_write,
                pass_fds=(events_write,),
                env={**(side.environment(_CHECKOUT) if side else _environment()), **dict(slot.variables)},
                start_new_session=True,  # a Ctrl-C is the executor's to handle, and the group can be ended as one
            )
        finally:
            os.close(events_write)
            os.close(output_write)
        if slot.cpus:
            bind(self.pid, slot.cpus)  # before it is told what to do, so that its memory comes from there too
        for fd in (self._events, output):
            os.set_blocking(fd, False)
        self.output = WorkerOutput(output, folder / f"worker-{number:03d}.log")
        self.peak_rss_mib = 0.0
        self.exit_code: int | None = None
        self._partial = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._events, selectors.EVENT_READ)
        self._selector.register(output, selectors.EVENT_READ)
        self._hand_over(job)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self, timeout_s: float) -> Iterator[Event]:
        """Wait for something to happen, and yield the events that came with it."""
        ready = [key.fd for key, _ in self._selector.select(timeout_s)]
        self._sample_memory()
        if self.output.fd in ready and not self.output.read():
            self._selector.unregister(self.output.fd)
        if self._events in ready:
            yield from self._read_events()

    def ended(self) -> bool:
        """Whether the process is gone; leaves it unreaped, so that its group can still be ended safely."""
        if self.exit_code is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def rest(self) -> Iterator[Event]:
        """After the end: the events that were still on their way. Ends the group and takes the exit code."""
        kill_tree(self.pid)
        self.exit_code = self._process.wait()
        self.output.read()
        yield from self._read_events()

    def close(self) -> None:
        """End the process and all it started."""
        if self.exit_code is None:
            kill_tree(self.pid)
            self.exit_code = self._process.wait()
        self._selector.close()
        self.output.close()
        os.close(self._events)

    def _hand_over(self, job: Job) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:  # a worker that died at birth is seen by its end
            stdin.write(msgspec.json.encode(job))

    def _read_events(self) -> Iterator[Event]:
        while True:
            try:
                data = os.read(self._events, 65536)
            except BlockingIOError:
                return
            if not data:
                with suppress(KeyError):
                    self._selector.unregister(self._events)
                return
            *whole, self._partial = (self._partial + data).split(b"\n")
            yield from map(EVENTS.decode, whole)

    def _sample_memory(self) -> None:
        with suppress(psutil.Error):
            rss = psutil.Process(self.pid).memory_info().rss
            self.peak_rss_mib = max(self.peak_rss_mib, round(rss / 2**20, 1))


def how_it_ended(exit_code: int) -> str:
    """`killed by SIGSEGV`, `exit code 3`: the words for an exit code of `subprocess`."""
    if exit_code >= 0:
        return f"the process ended with exit code {exit_code}"
    with suppress(ValueError):
        name = signal.Signals(-exit_code).name
        hint = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
        return f"the process was killed by {name}{hint}"
    return f"the process was killed by signal {-exit_code}"


def _environment() -> dict[str, str]:
    """The caller's environment; the worker must import this same checkout, wherever the command was given."""
    paths = [str(_CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**THREADS, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
