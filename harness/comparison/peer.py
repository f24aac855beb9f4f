"""One live side as the comparison sees it: ask, wait no longer than allowed, and learn how it ended if it did."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from harness.comparison.messages import REPLIES, Begin, Refused, Reply, Request
from harness.comparison.sides import Side
from harness.execution.output import WorkerOutput
from harness.execution.process import how_it_ended
from harness.execution.watchdog import kill_tree
from harness.profile import Profile
from harness.records import Fate


class SideFailed(Exception):
    """One side could not do its part: `fate` is what that means for the cell."""

    def __init__(self, side: Side, fate: Fate, reason: str, output_tail: str = "", stack: str = "") -> None:
        super().__init__(f"{side.name} {side}: {reason}")
        self.side, self.fate, self.output_tail, self.stack = side, fate, output_tail, stack


class Peer:
    """A started worker of one side. Always `close()` it."""

    def __init__(self, side: Side, profile: Profile, device: str, checkout: Path, log: Path) -> None:
        self.side = side
        self._replies, write = os.pipe()
        output, output_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                # -P: a folder that happens to hold another engine must not come first on the path
                [side.python, "-P", "-u", "-m", "harness.comparison.worker", str(write)],
                stdin=subprocess.PIPE,
                stdout=output_write,
                stderr=output_write,
                pass_fds=(write,),
                env=side.environment(checkout),
                start_new_session=True,
            )
        finally:
            os.close(write)
            os.close(output_write)
        for fd in (self._replies, output):
            os.set_blocking(fd, False)
        self.output = WorkerOutput(output, log)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._replies, selectors.EVENT_READ)
        self._selector.register(output, selectors.EVENT_READ)
        self._partial = b""
        self.send(Begin(profile, device, str(side.root), os.getpid()))

    def send(self, request: Request) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a dead worker is seen by the reply that never comes
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()

    def wait(self, limit_s: float, doing: str) -> Reply:
        """The next reply. Raises `SideFailed` for a refusal, a death or a silence longer than `limit_s`."""
        deadline = time.monotonic() + limit_s
        while True:
            line, newline, rest = self._partial.partition(b"\n")
            if newline:
                self._partial = rest
                return self._accepted(REPLIES.decode(line))
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._failed(Fate.HUNG, f"took longer than {limit_s:g} s to {doing}")
            self._read(left, doing)

    def close(self) -> None:
        """Let the worker end by itself, then end whatever is left of it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._end()
        self._selector.close()
        self.output.close()
        os.close(self._replies)

    def _end(self, patience_s: float = 20.0) -> int:
        """The exit code of a worker that should be ending; what does not end in time is ended."""
        try:
            return self._process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            kill_tree(self._process.pid)
            return self._process.wait()

    def _read(self, timeout_s: float, doing: str) -> None:
        ready = [key.fd for key, _ in self._selector.select(timeout_s)]
        if self.output.fd in ready and not self.output.read():
            self._selector.unregister(self.output.fd)
        if self._replies in ready:
            data = os.read(self._replies, 65536)
            if not data:
                raise self._failed(Fate.CRASHED, f"{how_it_ended(self._end())} while it should {doing}")
            self._partial += data

    def _accepted(self, reply: Reply) -> Reply:
        if isinstance(reply, Refused):
            fate = Fate.UNSUPPORTED if reply.too_old else Fate.CRASHED
            raise self._failed(fate, reply.reason, reply.stack)
        return reply

    def _failed(self, fate: Fate, reason: str, stack: str = "") -> SideFailed:
        self.output.read()
        return SideFailed(self.side, fate, reason, self.output.tail(), stack)
