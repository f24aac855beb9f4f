"""One row a figure, as CSV or Parquet, for spreadsheets and notebooks.

A table without its machine beside each figure was merged with another, and the merge was plotted as a trend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from harness.cells import DEFAULTS
from harness.errors import UsageError
from harness.history.figures import Figure, figures_of_run
from harness.machine import series_key
from harness.stats import quartiles
from harness.store import RunData


def rows(runs: Iterable[RunData]) -> Iterator[dict[str, Any]]:
    """Every published, finite figure with its run, commit, machine and axes; an unsound one is an error of its cell."""
    for run in runs:
        shared = _run_facts(run)
        dtypes = {(lane.cell, lane.lane): lane.dtype for lane in run.lanes}
        for figure in figures_of_run(run):
            if figure.is_sound:
                yield {**shared, **_figure_facts(figure), "dtype": dtypes[figure.cell, figure.lane]}


def write_csv(runs: list[RunData], out: Path) -> int:
    frame = pd.DataFrame(rows(runs))
    frame.to_csv(out, index=False)
    return len(frame)


def write_parquet(runs: list[RunData], out: Path) -> int:
    frame = pd.DataFrame(rows(runs))
    try:
        frame.to_parquet(out, index=False)
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow, which is not installed: pip install pyarrow, or export csv") from error
    return len(frame)


def _run_facts(run: RunData) -> dict[str, Any]:
    header = run.header
    software = header.fingerprint.get("software", {})
    return {
        "run": header.run,
        "started": header.started,
        "commit": header.engine_revision.get("commit"),
        "dirty_digest": header.engine_revision.get("dirty_digest"),
        "machine": series_key(header.fingerprint, header.device),
        "device": header.device,
        "profile": header.profile,
        "protocol": header.protocol,
        **{name: software.get(name) for name in ("torch", "rocm", "triton", "aiter")},
    }


def _figure_facts(figure: Figure) -> dict[str, Any]:
    box = quartiles(figure.samples, figure.label)
    axes = {name: _text(figure.axes.get(name, default)) for name, default in DEFAULTS.items()}
    return {
        **axes,
        "lane": figure.lane,
        "metric": figure.metric,
        "unit": figure.unit,
        "batch": figure.batch,
        "kind": figure.kind,
        "cache": figure.cache,
        "arm": figure.arm,
        "exact": figure.exact,
        "median": box.median,
        "p25": box.p25,
        "p75": box.p75,
        "samples": len(figure.samples),
    }


def _text(value: Any) -> Any:
    return "-".join(map(str, value)) if isinstance(value, (list, tuple)) else value
