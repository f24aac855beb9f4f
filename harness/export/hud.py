"""Rows of the PyTorch HUD, version 3: where vLLM's and SGLang's figures are kept already.

Its baselines are medians over days of the same runner and dependencies, so a row without them joins no series.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.history.figures import Figure, figures_of_run
from harness.machine import series_key
from harness.store import RunData

SCHEMA = "v3"
REPOSITORY = "atom-harness"


def rows(runs: Iterable[RunData]) -> Iterator[dict[str, Any]]:
    """One row a figure, with every sample in `benchmark_values`."""
    for run in runs:
        for figure in figures_of_run(run):
            if figure.is_sound:
                yield _row(run, figure)


def write_hud(runs: list[RunData], out: Path) -> int:
    """One JSON object a line."""
    lines = [json.dumps(row, sort_keys=True, allow_nan=False) for row in rows(runs)]
    out.write_text("".join(f"{line}\n" for line in lines))
    return len(lines)


def _row(run: RunData, figure: Figure) -> dict[str, Any]:
    header, axes = run.header, figure.axes
    where = {"batch": figure.batch, "kind": figure.kind or None, "arm": figure.arm, "lane": figure.lane}
    where["cache"] = figure.cache or None
    return {
        "timestamp": int(datetime.fromisoformat(header.started).timestamp()),
        "schema_version": SCHEMA,
        "name": "atom-harness",
        "repo": REPOSITORY,
        "head_branch": "",
        "head_sha": str(header.engine_revision.get("commit", "")),
        "workflow_id": 0,
        "run_attempt": 0,
        "job_id": 0,
        "runners": [_runner(header.fingerprint, header.device)],
        "benchmark": {
            "name": header.profile,
            "mode": str(axes.get("mode", "NONE")),
            "dtype": _dtype(run, figure),
            "extra_info": {"cell": figure.cell, "level": str(axes.get("level", 0)), "run": header.run},
        },
        "model": {
            "name": str(axes.get("model")),
            "type": str(axes.get("workload")),
            "backend": str(axes.get("engine")),
            "origins": [],
            "extra_info": {},
        },
        "inputs": {name: {"extra_info": {"value": str(value)}} for name, value in where.items() if value is not None},
        "dependencies": _dependencies(header.fingerprint.get("software", {})),
        "metric": {
            "name": figure.metric,
            "benchmark_values": list(figure.samples),
            "target_value": 0.0,
            "extra_info": {"unit": figure.unit, "exact": str(figure.exact).lower(), "lower_is_better": "true"},
        },
    }


def _runner(fingerprint: Mapping[str, Any], device: str) -> dict[str, Any]:
    gpus = fingerprint.get("gpus") or []
    cpu = fingerprint.get("cpu", {})
    return {
        "name": series_key(fingerprint, device),
        "type": device,
        "cpu_info": str(cpu.get("model", "")),
        "cpu_count": int(cpu.get("usable_cores") or 0),
        "gpu_info": str(gpus[0].get("name", "")) if gpus else "",
        "gpu_count": len(gpus),
        "avail_mem_in_gb": int(fingerprint.get("memory_mib") or 0) // 1024,
        "avail_gpu_mem_in_gb": 0,
        "extra_info": {"kernel": str(fingerprint.get("os", {}).get("kernel", ""))},
    }


def _dtype(run: RunData, figure: Figure) -> str:
    found = (lane.dtype for lane in run.lanes if (lane.cell, lane.lane) == (figure.cell, figure.lane))
    return next(found, "")


def _dependencies(software: Mapping[str, Any]) -> dict[str, Any]:
    repositories = {"torch": "pytorch/pytorch", "triton": "triton-lang/triton", "aiter": "ROCm/aiter"}
    return {
        name: {"repo": repo, "branch": "", "sha": "", "version": str(software[name])}
        for name, repo in repositories.items()
        if name in software
    }
