"""What a decode step costs, as asv keeps it: its time, its copies, its segments and regions, its fallbacks.

asv runs a `setup` before every timed call, so compiling there cost seven thousand compiles a row, and it starts a
process for every row. Here the cells run once, in `setup_cache`, in child processes of the harness with its own timer;
a row only reads its figure. The dict with `samples` and `number` gets asv's statistics, as a `time_` row does.

A row is called `track_<figure>`: `harness backfill` finds the same figure in stored records by that name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from harness.history.figures import COPY_KINDS
from harness.records import PROTOCOL_VERSION

from .figures import Figures, axes_of, decode_figures, measure, store

PROFILE = os.environ.get("PERFORMANCE_PROFILE") or str(Path(__file__).with_name("decode.toml"))
AXES = axes_of(PROFILE)
MODELS, LEVELS, MODES, GRAPHS, BATCHES = AXES.models, AXES.levels, AXES.modes, AXES.graphs, AXES.batches


class _Decode:
    """One decode step of a full bucket. All rows are costs: lower is better, the only direction that asv knows.

    asv runs an inherited `setup_cache` once for all the classes that inherit it.
    """

    param_names: tuple[str, ...] = ("model", "level", "mode", "batch")
    params: tuple[list[Any], ...] = (MODELS, LEVELS, MODES, BATCHES)
    timeout = 120
    version = f"protocol {PROTOCOL_VERSION}"

    def setup_cache(self) -> Figures:
        return decode_figures(measure(PROFILE, store(), arguments=AXES.narrowing))

    setup_cache.timeout = 3600  # type: ignore[attr-defined]  # seconds without output; a cold compile is silent


class DecodeLatency(_Decode):
    unit = "us"
    pretty_name = "decode step latency"

    def track_decode_latency_us(
        self, figures: Figures, model: str, level: int, mode: str, batch: int
    ) -> dict[str, object]:
        return {"samples": figures.samples("decode_latency_us", model, level, mode, batch), "number": 1}


class DecodeCopies(_Decode):
    """Staging, hand-off, padding and output copies of a step; without a graph, staging alone."""

    unit = "bytes"
    pretty_name = "bytes copied per decode step"

    def track_copied_bytes_per_step(self, figures: Figures, model: str, level: int, mode: str, batch: int) -> float:
        return figures.value("copied_bytes_per_step", model, level, mode, batch)


class DecodeCopyCounts(_Decode):
    param_names = (*_Decode.param_names, "kind")
    params = (MODELS, LEVELS, MODES, BATCHES[-1:], list(COPY_KINDS))
    unit = "count"
    pretty_name = "copies per decode step"

    def track_copies_per_step(
        self, figures: Figures, model: str, level: int, mode: str, batch: int, kind: str
    ) -> float:
        return figures.value("copies_per_step", model, level, mode, batch, kind=kind)


class DecodeTopology(_Decode):
    """A region that appears, or a graph that falls apart, costs launches long before it costs a millisecond."""

    params = (MODELS, LEVELS, GRAPHS, BATCHES[-1:])
    unit = "count"

    def track_segments_per_step(self, figures: Figures, model: str, level: int, mode: str, batch: int) -> float:
        return figures.value("segments_per_step", model, level, mode, batch)

    def track_regions_per_step(self, figures: Figures, model: str, level: int, mode: str, batch: int) -> float:
        return figures.value("regions_per_step", model, level, mode, batch)


class DecodeRecordings(_Decode):
    """What the recordings of a ladder hold, how many steps they did not serve, and what had to be traced again."""

    param_names = ("model", "level", "mode", "ladder")
    params = (MODELS, LEVELS, GRAPHS, [AXES.ladder])

    def track_pool_bytes(self, figures: Figures, model: str, level: int, mode: str, ladder: str) -> float:
        return figures.value("pool_bytes", model, level, mode)

    track_pool_bytes.unit = "bytes"  # type: ignore[attr-defined]

    def track_unreplayed_share(self, figures: Figures, model: str, level: int, mode: str, ladder: str) -> float:
        return figures.value("unreplayed_share", model, level, mode)

    track_unreplayed_share.unit = "share"  # type: ignore[attr-defined]

    def track_recompiles(self, figures: Figures, model: str, level: int, mode: str, ladder: str) -> float:
        return figures.value("recompiles", model, level, mode)

    track_recompiles.unit = "count"  # type: ignore[attr-defined]
