"""What the executor and a worker say to each other: one job in, a line for every event out.

Events travel over a descriptor of their own. On stdout any library's print could corrupt them, and did elsewhere.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness.cells import Cell
from harness.plan import Unit
from harness.profile import Profile
from harness.records import LaneRecord, Phase

#: A worker that ends with this code was given a job it could not read: the harness's fault, never the engine's.
BAD_JOB = 70
#: The line that a worker prints before a unit, so that a tail of its output can be told from the unit's before.
OUTPUT_MARK = "== unit "


class UnitSpec(msgspec.Struct, frozen=True):
    axes: dict[str, Any]
    lane: str
    dtype: str
    launch: int = 0

    @classmethod
    def of(cls, unit: Unit) -> UnitSpec:
        return cls(dict(unit.cell.axes), unit.lane, unit.dtype, unit.launch)

    def unit(self) -> Unit:
        return Unit(Cell.of(**self.axes), self.lane, self.dtype, self.launch)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one worker process is told, as JSON on its stdin."""

    profile: Profile
    device: str
    units: list[UnitSpec]
    events_fd: int
    stack_file: str  # where faults and SIGUSR1 dump every thread's stack
    parent: int  # process id; a worker does not outlive it


class Started(msgspec.Struct, frozen=True, tag="started"):
    unit: str
    at: str  # ISO 8601, UTC


class Entered(msgspec.Struct, frozen=True, tag="entered"):
    unit: str
    phase: Phase


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """Everything is measured and nothing is closed yet: what is kept if the teardown kills the process."""

    record: LaneRecord


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The unit is closed. It becomes certain when the next one starts or the process ends well."""

    record: LaneRecord


Event = Started | Entered | Measured | Finished
EVENTS = msgspec.json.Decoder(Event)
JOBS = msgspec.json.Decoder(Job)
