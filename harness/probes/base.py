"""One probe measures one thing about an opened cell and says what it found as gates, latencies and counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.cells import Cell
from harness.engines.base import EngineSession, SessionSpec
from harness.probes.answers import Answers
from harness.profile import Profile
from harness.records import GateResult, Latency, Phase


@dataclass(frozen=True)
class ProbeContext:
    """What a probe is given. `lane` is "serving" or "float32"; `enter` reports the worker's phase to the watchdog."""

    session: EngineSession
    cell: Cell
    spec: SessionSpec
    profile: Profile
    lane: str
    device: str  # "cpu" or "cuda"
    capture: dict[str, Any]  # what `session.capture()` claimed
    enter: Callable[[Phase], None] = lambda phase: None
    launch: int = 0  # a later one asks again whether replay is right, and times nothing
    answers: Answers | None = None  # of earlier cells of this process; None: every step is run


@dataclass
class ProbeResult:
    gates: list[GateResult] = field(default_factory=list)
    latency: list[Latency] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)

    def merge(self, other: ProbeResult) -> None:
        self.gates += other.gates
        self.latency += other.latency
        self.counters |= other.counters


class Probe(Protocol):
    name: str

    def run(self, context: ProbeContext) -> ProbeResult: ...
