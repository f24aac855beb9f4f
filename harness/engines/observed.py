"""What one step did, counted by someone who does not read the engine's ledger.

A ledger knows the copies that its own code notes. The one that cost a millisecond a step was a `.clone()` in the
model, which notes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Place(str, Enum):
    """Where a copy lands."""

    STAGING = "staging"  # from host memory into device memory
    OUTPUT = "output"  # into a buffer that the caller reads after a replay
    DEVICE = "device"  # anywhere else


@dataclass(frozen=True)
class ObservedCopy:
    """One copy; `site` is empty if unknown."""

    op: str
    bytes: int
    place: Place
    site: str = ""
    recorded: bool = False

    def __str__(self) -> str:
        where = f" at {self.site}" if self.site else ""
        return f"{self.op} of {self.bytes} bytes{' in a recording' if self.recorded else ''}{where}"


@dataclass(frozen=True)
class PoolUse:
    """What a step took from the recordings' pools and gave back to them outside every capture, by the allocator's own
    account. `site` is where it first did, if known.
    """

    taken: int = 0
    bytes: int = 0
    returned: int = 0
    site: str = ""


@dataclass(frozen=True)
class Observed:
    """One step from outside, with what the engine claims of it.

    `launches` are graph launches, `regions` the stretches of eager device work between two of them, `nodes` the nodes
    of the launched graphs. `operations` counts other device work than copies by name, recorded work included; `sites`
    says where each name was first seen. Names are the device's own: operators on a CPU, kernels on a GPU.
    `needless` are clones of a tensor in the layout that it already has. `pool_use` is None where there is no recording,
    or the allocator does not tell.
    """

    claim: Mapping[str, Any]
    launches: int
    regions: int
    nodes: int
    operations: Mapping[str, int]
    copies: tuple[ObservedCopy, ...]
    needless: tuple[ObservedCopy, ...] = ()
    sites: Mapping[str, str] = field(default_factory=dict)
    pool_use: PoolUse | None = None

    def landed(self, place: Place) -> tuple[int, int]:
        """How many copies landed there, and their bytes."""
        sizes = [copy.bytes for copy in self.copies if copy.place is place]
        return len(sizes), sum(sizes)
