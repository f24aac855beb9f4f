"""A device of known latency for a machine without one: a thread that is busy for so long and says when it is done.

The launch returns at once, as a GPU's does. A timer that does not wait reads next to nothing of it.
"""

from __future__ import annotations

import queue
import threading
import time


class FakeDevice:
    """Runs `kernels` spins of `spin_us` for each launch, in order, beside the caller."""

    truth = "a thread that watches the monotonic clock"

    def __init__(self, spin_us: float = 400.0) -> None:
        self.spin_us = spin_us
        self._work: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._launched = 0
        self._thread = threading.Thread(target=self._run, name="fake-device", daemon=True)
        self._thread.start()

    def launch(self, kernels: int) -> None:
        self._launched += 1
        self._work.put(kernels)

    def synchronize(self) -> None:
        """Wait until every launch so far is done."""
        for _ in range(self._launched):
            self._idle.acquire()
        self._launched = 0

    def close(self) -> None:
        self._work.put(-1)
        self._thread.join()

    def _run(self) -> None:
        while (kernels := self._work.get()) >= 0:
            end = time.monotonic_ns() + int(kernels * self.spin_us * 1e3)
            # Sleep most of it, so that the caller's thread has the interpreter, and watch the clock for the rest.
            time.sleep(max(0.0, (end - time.monotonic_ns() - 300_000) / 1e9))
            while time.monotonic_ns() < end:
                pass
            self._idle.release()
