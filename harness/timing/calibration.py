"""A timer is tried on work of known length before it times anything else.

A device that finished 50 us after the call returned was timed without waiting, and a flush inside the window was timed
with it: errors of ten times, both ways, and every figure looked plausible. Here k kernels of a known length must take k
times that length, to within 5 %, by the very clock and the very synchronisation that will time the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

TOLERANCE = 0.05
KERNELS = (1, 2, 4, 8, 16)
REPEATS = 7
TRIES = 3

Clock = Callable[[], int]


class Spinner(Protocol):
    """Work of known length. `truth` says who knows it."""

    spin_us: float
    truth: str

    def launch(self, kernels: int) -> None:
        """Start so many kernels one after the other, as one graph, and return without waiting."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Calibration:
    """What the timer `name` reads, against the truth. `slope` is 1 for a timer that is right."""

    name: str
    slope: float
    offset_us: float  # what it reads of nothing: clock and synchronisation
    launch_us: float  # what a launch costs beyond its kernels
    spin_us: float
    truth: str
    tries: int
    readings_us: tuple[tuple[int, float], ...]  # kernels, least reading

    @property
    def ok(self) -> bool:
        return abs(self.slope - 1) <= TOLERANCE and 0 <= self.offset_us < self.spin_us

    def __str__(self) -> str:
        again = f", at the attempt {self.tries} of {TRIES}" if self.tries > 1 else ""
        return (
            f"{self.name} reads {100 * self.slope:.1f} % of {self.spin_us:g} us a kernel ({self.truth}) "
            f"over {KERNELS[0]} to {KERNELS[-1]} kernels, {self.offset_us:.2f} us of nothing "
            f"and {self.launch_us:.1f} us a launch"
            f"{again}"
        )


def calibrate(name: str, spinner: Spinner, read: Callable[[Callable[[], None]], float]) -> Calibration:
    """Try a timer. `read(work)` gives the microseconds that it reads of `work`, synchronisation included.

    A busy machine only ever adds, so the least of several readings counts; a timer that fails is tried again twice.
    """
    found = _attempt(name, spinner, read, 1)
    for number in range(2, TRIES + 1):
        if found.ok:
            break
        found = _attempt(name, spinner, read, number)
    return found


def _attempt(name: str, spinner: Spinner, read: Callable[[Callable[[], None]], float], number: int) -> Calibration:
    offset_us = min(read(lambda: None) for _ in range(REPEATS * 3))
    readings = []
    for kernels in KERNELS:
        spinner.launch(kernels)  # the first launch of a graph uploads it
        readings.append((kernels, min(read(partial(spinner.launch, kernels)) for _ in range(REPEATS))))
    slope_us, intercept_us = _line(readings)
    return Calibration(
        name,
        slope_us / spinner.spin_us,
        offset_us,
        intercept_us - offset_us,
        spinner.spin_us,
        spinner.truth,
        number,
        tuple(readings),
    )


def _line(readings: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line."""
    kernels, times_us = np.asarray(readings, dtype=np.float64).T
    slope, intercept = np.polyfit(kernels, times_us, 1)
    return float(slope), float(intercept)


def idle_to_idle_us(work: Callable[[], object], synchronize: Callable[[], None], clock: Clock) -> float:
    """Microseconds of `work` from an idle device to an idle device: the one way in which the harness times a step."""
    synchronize()
    begun = clock()
    work()
    synchronize()
    return (clock() - begun) / 1e3
