"""What the engine says it did in a step.

"Nothing failed, it was just slow" is the most common complaint about this layer: a fall back to eager that nobody
counted. Every step therefore leaves one record, and every fall back, copy, segment and compile in it is a number with
a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class CopyKind(str, Enum):
    STAGING = "staging"  # host to the step's fixed input buffers
    COPY_IN = "copy_in"  # an argument into the address that a recording reads
    HANDOFF = "handoff"  # a region's result into the buffer the next segment reads
    OUTPUT = "output"  # a result out of the pool
    PADDING = "padding"  # a tail rewritten so that last step's values do not leak


class Fallback(str, Enum):
    """Why a step did not replay what its mode asks for."""

    ENFORCE_EAGER = "enforce_eager"
    GRAPHS_OFF = "use_cudagraph_false"
    PREFILL_EAGER = "prefill_is_eager_in_this_mode"
    ABOVE_LADDER = "batch_above_the_ladder"
    NO_PREFILL_BUCKET = "tokens_above_every_prefill_bucket"
    NOT_CAPTURED = "capture_has_not_run"
    REQUESTED = "caller_asked_for_no_graph"


@dataclass
class CopyCount:
    count: int = 0
    bytes: int = 0


@dataclass
class StepRecord:
    """One step. Rows are hidden-state rows; times are host microseconds."""

    step: int = 0
    phase: str = "decode"
    requested_mode: str = "NONE"
    effective_mode: str = "NONE"
    fallback: Fallback | None = None
    bucket: int | None = None
    live_rows: int = 0
    padded_rows: int = 0
    graph_key: str | None = None
    segments: int = 0
    regions: int = 0
    copies: dict[CopyKind, CopyCount] = field(default_factory=dict)
    compiles: int = 0
    recompiles: int = 0
    cache_hits: int = 0
    host_us: float = 0.0

    def copied(self, kind: CopyKind, nbytes: int) -> None:
        entry = self.copies.setdefault(kind, CopyCount())
        entry.count += 1
        entry.bytes += nbytes

    def add_copies(self, copies: Mapping[CopyKind, CopyCount]) -> None:
        for kind, more in copies.items():
            entry = self.copies.setdefault(kind, CopyCount())
            entry.count += more.count
            entry.bytes += more.bytes

    def copies_since(self, before: Mapping[CopyKind, CopyCount]) -> dict[CopyKind, CopyCount]:
        """What was copied beyond `before`, an earlier deep copy of `copies`."""
        none = CopyCount()
        grown = {
            kind: CopyCount(now.count - before.get(kind, none).count, now.bytes - before.get(kind, none).bytes)
            for kind, now in self.copies.items()
        }
        return {kind: count for kind, count in grown.items() if count.count}


class StepLedger:
    """Totals over a runner's life, and the last step's record."""

    def __init__(self) -> None:
        self.last: StepRecord | None = None
        self.steps = 0
        self.replayed_steps = 0
        self.fallbacks: Counter[Fallback] = Counter()

    def close(self, record: StepRecord) -> None:
        record.step = self.steps
        self.last = record
        self.steps += 1
        self.replayed_steps += record.segments > 0
        if record.fallback is not None:
            self.fallbacks[record.fallback] += 1
