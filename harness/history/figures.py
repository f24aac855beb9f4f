"""The figures of a run, each under one name that asv's rows, the exports and the history share.

Two readers of the same record once summed copies differently, and a table disagreed with the plot beside it. A figure
is a cost, lower is better, for that is the only direction that asv knows. No scipy here: each of asv's rows is a
process that imports this.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.records import Fate, LaneRecord
from harness.store import RunData

#: A wrong answer, or another mode than the cell names, has no cost to publish. A changed cost is what history follows.
PUBLISHED = frozenset({Fate.MEASURED, Fate.COST_CHANGED, Fate.SLOWER, Fate.FASTER, Fate.INCONCLUSIVE, Fate.WAIVED})

#: Every kind of copy that a step can make; one that it does not make costs zero, and is no hole in a series.
COPY_KINDS = ("staging", "copy_in", "handoff", "output", "padding")

#: How `per_bucket` begins the name of a size that runs without a bucket.
EAGER = "eager "

#: Seconds, once for each cell, by what the capture calls them.
DURATIONS = {"capture_s": "capture_s", "compile_s": "compile_s", "start_s": "first_graph_s"}
#: Exact numbers of a capture; the second names where it keeps them.
COUNTS = {"pool_bytes": (), "recompiles": ("compiles",), "graph_breaks": ("compiles",)}


@dataclass(frozen=True)
class Figure:
    """One cost of one cell. `batch` is the bucket of a per-step figure, or the live rows of a step without one; `kind`
    the kind of copy; `arm` the timed arm; `cache` what `cache_state` says of a start.

    `exact` figures have no spread: any change is a change.
    """

    metric: str
    unit: str  # us, s, bytes or count
    cell: str
    lane: str
    axes: Mapping[str, Any]
    samples: tuple[float, ...]
    batch: int | None = None
    kind: str = ""
    arm: str = "R"
    exact: bool = False
    cache: str = ""

    @property
    def value(self) -> float:
        """The median. Raises ValueError for samples that are missing, NaN or infinite."""
        if not self.samples or not all(map(math.isfinite, self.samples)):
            raise ValueError(f"{self.label}: samples must be finite, and there must be some; got {self.samples[:5]}")
        return statistics.median(self.samples)

    @property
    def is_sound(self) -> bool:
        return bool(self.samples) and all(math.isfinite(sample) and sample >= 0 for sample in self.samples)

    @property
    def label(self) -> str:
        """`decode_latency_us[batch=4] level=3,mode=FULL`: unique within a run."""
        return self._label(cache=self.cache or None)

    @property
    def place(self) -> str:
        """The label without the state of the cache: a start that was warm tonight is not a cold one that is missing."""
        return self._label(cache=None)

    def _label(self, cache: str | None) -> str:
        facts = {"batch": self.batch, "kind": self.kind or None, "arm": None if self.arm == "R" else self.arm}
        facts["cache"] = cache
        inner = ",".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        lane = "" if self.lane == "serving" else f" {self.lane}"
        return f"{self.metric}{f'[{inner}]' if inner else ''} {self.cell}{lane}"


def figures_of_run(run: RunData) -> Iterator[Figure]:
    """The figures of every lane whose answer is right and whose mode is the one it names."""
    for lane in run.lanes:
        if lane.fate in PUBLISHED and lane.launch == 0:  # the later launches time and count nothing
            yield from figures_of(lane)


def figures_of(lane: LaneRecord) -> Iterator[Figure]:
    """Every figure of one lane, sound or not; `Figure.is_sound` says whether it may be published."""
    yield from _latencies(lane)
    yield from _per_step(lane)
    yield from _capture(lane)


def _figure(lane: LaneRecord, metric: str, unit: str, samples: Iterable[float], **more: Any) -> Figure:
    return Figure(metric, unit, lane.cell, lane.lane, lane.axes, tuple(map(float, samples)), **more)


def _latencies(lane: LaneRecord) -> Iterator[Figure]:
    """Full buckets alone: a step that is padded costs what its bucket costs."""
    for entry in lane.latency:
        if entry.phase != "decode" or entry.batch == entry.bucket:
            metric = f"{entry.phase}_latency_us"
            yield _figure(lane, metric, "us", entry.samples_us, batch=entry.bucket, arm=entry.arm)


def _per_step(lane: LaneRecord) -> Iterator[Figure]:
    """Exact costs of one step of each bucket, or eager size, and how many steps were not replayed."""
    for step, costs in lane.counters.get("per_bucket", {}).items():
        batch = int(step.removeprefix(EAGER))
        for name in ("segments", "regions"):
            if costs.get(name) is not None:
                yield _figure(lane, f"{name}_per_step", "count", [costs[name]], batch=batch, exact=True)
        copies = {kind: {"bytes": 0, "count": 0} for kind in COPY_KINDS} | costs["copies"]
        total = {name: sum(copy[name] for copy in copies.values()) for name in ("bytes", "count")}
        for kind, copy in {"": total, **copies}.items():
            yield _figure(lane, "copied_bytes_per_step", "bytes", [copy["bytes"]], batch=batch, kind=kind, exact=True)
            yield _figure(lane, "copies_per_step", "count", [copy["count"]], batch=batch, kind=kind, exact=True)
    driven, replayed = (lane.counters.get(name) for name in ("driven_steps", "replayed_steps"))
    if driven and replayed is not None and lane.axes.get("mode") != "NONE":
        yield _figure(lane, "unreplayed_share", "share", [1 - replayed / driven], exact=True)


def _capture(lane: LaneRecord) -> Iterator[Figure]:
    for key, metric in DURATIONS.items():
        if lane.capture.get(key) is not None:
            yield _figure(lane, metric, "s", [lane.capture[key]], cache=cache_state(lane.capture))
    for metric, path in COUNTS.items():
        table: Mapping[str, Any] = lane.capture
        for key in path:
            table = table.get(key) or {}
        if table.get(metric) is not None:
            unit = "bytes" if metric.endswith("bytes") else "count"
            yield _figure(lane, metric, unit, [table[metric]], exact=True)


def cache_state(capture: Mapping[str, Any]) -> str:
    """What a start found: "cold" (all code was generated), "warm" (all was loaded), "mixed", "reused" (an earlier cell
    of the process had left it); "" where no code is generated at all.

    A cold start on the night of a change beside a warm one on the night after is no speed-up.
    """
    compiles = capture.get("compiles") or {}
    made, loaded = compiles.get("num_inductor_compiles", 0), compiles.get("num_cache_hits", 0)
    if not made + loaded:
        return ""
    if not capture.get("compile_s"):
        return "reused"
    return "mixed" if made and loaded else "cold" if made else "warm"
