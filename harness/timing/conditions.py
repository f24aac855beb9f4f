"""What the machine did while something was timed: clocks, power, limits that held them down, and other people's work.

A GPU that ran into its power cap for ten seconds, and a neighbour's compile on the same socket, each cost a release two
days of bisecting. Readings are taken around every timed block; a block during which the machine was not itself is timed
again, a bounded number of times, and both are said.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import psutil

from harness.host import UNKNOWN, Host
from harness.timing.gpu_sensors import open_sensors

Block = TypeVar("Block")
Taken = TypeVar("Taken")

#: Cores' worth of other processes' work during a block beyond which it is timed again, if it leaves fewer idle cores.
OTHERS_CORES = 0.5
#: Seconds below which a block's share of the CPU is not known.
COUNTED_S = 0.1
#: A relative fall of the CPU's own clock within one block.
CPU_CLOCK_FALL = 0.2
#: Blocks of one bucket that may be timed again.
MOST_AGAIN = 4


@dataclass(frozen=True)
class Reading:
    """One moment. Figures that nobody can say are None; `throttling` is "none", names of limits, or "unknown"."""

    at_s: float
    busy_cpu_s: float  # of the whole machine, since it started
    own_cpu_s: float  # of this process
    cpu_mhz: float | None = None
    gpu: dict[str, Any] = field(default_factory=dict)  # clock_mhz, power_w, throttling, users, violations


class Sensors(Protocol):
    """A GPU's own account of itself; see `harness.timing.gpu_sensors`."""

    def read(self) -> dict[str, Any]: ...


class Watch:
    """Reads the machine. `sensors` is None on a CPU."""

    def __init__(self, sensors: Sensors | None, host: Host | None = None, cores: int | None = None) -> None:
        self._sensors, self._host = sensors, host or Host()
        self.cores = cores or self._host.cores

    def read(self) -> Reading:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # the kernel counts it twice
        own = psutil.Process().cpu_times()
        return Reading(
            at_s=time.monotonic(),
            busy_cpu_s=sum(times) - idle - guest,
            own_cpu_s=own.user + own.system,
            cpu_mhz=self._cpu_mhz(),
            gpu=self._sensors.read() if self._sensors else {},
        )

    def _cpu_mhz(self) -> float | None:
        """Of the first CPU that this process may use: reading all of a large machine takes longer than a step."""
        cpu = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        said = self._host.read(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
        return int(said) / 1e3 if said.isdigit() else None


def watch_for(device: str) -> Watch:
    """A watch of the device that this process runs on, "cpu" or "cuda"."""
    return Watch(open_sensors() if device.partition(":")[0] == "cuda" else None)


def violations(before: Reading, after: Reading, cores: int) -> list[str]:
    """Why what was timed between two readings of one machine does not show the engine; empty for a quiet block."""
    found = []
    others = others_cores(before, after)
    if others is not None and others > max(OTHERS_CORES, cores - 1):
        found.append("other processes took the CPU")
    if before.cpu_mhz and after.cpu_mhz and after.cpu_mhz < (1 - CPU_CLOCK_FALL) * before.cpu_mhz:
        found.append("the CPU's clock fell")
    held = sorted({*_limits(before), *_limits(after)})
    if held:
        found.append(f"the GPU's clocks were held down ({', '.join(held)})")
    if _grew(before, after, "violations"):
        found.append("the GPU counted time under a limit")
    if before.gpu.get("users", UNKNOWN) != after.gpu.get("users", UNKNOWN):
        found.append("another process came to the GPU or left it")
    return found


def others_cores(before: Reading, after: Reading) -> float | None:
    """Cores' worth of other processes' work between two readings. The kernel counts in hundredths of a second, so a
    shorter block cannot be judged by it: None.
    """
    wall_s = after.at_s - before.at_s
    others_s = after.busy_cpu_s - before.busy_cpu_s - (after.own_cpu_s - before.own_cpu_s)
    return max(0.0, others_s / wall_s) if wall_s >= COUNTED_S else None


def _limits(reading: Reading) -> list[str]:
    said = reading.gpu.get("throttling", UNKNOWN)
    return [] if said in (UNKNOWN, "none") else str(said).split()


def _grew(before: Reading, after: Reading, name: str) -> bool:
    first, last = before.gpu.get(name), after.gpu.get(name)
    return isinstance(first, int) and isinstance(last, int) and last > first


@dataclass
class Conditions:
    """What the readings around the blocks of one bucket showed."""

    blocks: int = 0
    again: Counter[str] = field(default_factory=Counter)  # why a block was timed again
    kept: Counter[str] = field(default_factory=Counter)  # why one that was kept should not have been
    readings: list[Reading] = field(default_factory=list)
    others_cores: list[float] = field(default_factory=list)  # other processes' work in blocks long enough to tell

    def __str__(self) -> str:
        parts = [f"{self.blocks} blocks", *(f"{name} {text}" for name, text in self._ranges())]
        parts += [f"{count} timed again: {why}" for why, count in self.again.items()]
        parts += [f"{count} kept although {why}" for why, count in self.kept.items()]
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        return {
            "blocks": self.blocks,
            "again": dict(self.again),
            "kept": dict(self.kept),
            **dict(self._ranges()),
        }

    def _ranges(self) -> list[tuple[str, str]]:
        gpu = {
            "GPU clock": ("clock_mhz", "MHz"),
            "power": ("power_w", "W"),
            "temperature": ("temperature_c", "C"),
        }
        named = [("CPU clock", _range([reading.cpu_mhz for reading in self.readings], "MHz"))]
        named.append(("others on the CPU", _range(self.others_cores, "cores", digits=1)))
        if any(reading.gpu for reading in self.readings):
            for title, (name, unit) in gpu.items():
                named.append((title, _range([reading.gpu.get(name) for reading in self.readings], unit)))
            limits = sorted({str(reading.gpu.get("throttling", UNKNOWN)) for reading in self.readings})
            users = sorted({str(reading.gpu.get("users", UNKNOWN)) for reading in self.readings})
            named += [("limits", " ".join(limits)), ("processes on the GPU", " ".join(users))]
        return named


def _range(figures: Sequence[float | None], unit: str, digits: int = 0) -> str:
    known = [figure for figure in figures if isinstance(figure, (int, float))]
    if not known:
        return UNKNOWN
    low, high = min(known), max(known)
    first, last = f"{low:.{digits}f}", f"{high:.{digits}f}"
    return f"{first} {unit}" if first == last else f"{first} to {last} {unit}"


def timed_blocks(
    blocks: Sequence[Block], take: Callable[[Block], Taken], watch: Watch, most_again: int = MOST_AGAIN
) -> tuple[list[Taken], Conditions]:
    """Take every block with a reading on either side; one that the machine spoilt is taken again, within bounds."""
    seen, taken = Conditions(), list[Taken]()
    for block in blocks:
        while True:
            before = watch.read()
            result = take(block)
            after = watch.read()
            seen.readings += [before, after]
            spoilt = violations(before, after, watch.cores)
            if (others := others_cores(before, after)) is not None:
                seen.others_cores.append(round(others, 2))
            if not spoilt or seen.again.total() >= most_again:
                break
            seen.again.update(spoilt[:1])
        seen.blocks += 1
        seen.kept.update(spoilt)
        taken.append(result)
    return taken, seen
