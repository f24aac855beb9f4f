"""Runs as a nightly leaves them, one a commit, for the tests of history, export, backfill and nightly."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harness.records import CellVerdict, Fate, LaneRecord, Latency, Phase, RunHeader, Verdict
from harness.store import RunData, RunStore, load_run

FIRST = datetime(2026, 11, 1, 2, tzinfo=UTC)
CELL = "level=3,mode=FULL,ladder=1-2-4"
MODEL = "smollm2-135m-instruct"
AXES = {"engine": "atom_impl", "model": MODEL, "level": 3, "mode": "FULL", "workload": "decode", "ladder": [1, 2, 4]}
FACTS: dict[str, Any] = {
    "cpu": {"model": "A Processor", "usable_cores": 2, "flags": ["avx2"]},
    "memory_mib": 16000,
    "os": {"name": "Linux", "kernel": "6.1", "architecture": "x86_64"},
    "gpus": [],
    "visible_gpus": 0,
    "software": {"python": "3.11.7", "torch": "2.13.0", "triton": "3.7.1", "aiter": "unknown", "rocm": "unknown"},
    "environment": {},
    "now": {"load_1min": "0.5"},
}


def make_commits(folder: Path, count: int) -> list[str]:
    """A repository with `count` commits, a night apart; the oldest first."""
    folder.mkdir(parents=True, exist_ok=True)
    _git(folder, {}, "init", "--quiet", "--initial-branch", "main")
    made = []
    for night in range(count):
        stamp = (FIRST + timedelta(days=night)).isoformat()
        dates = {"GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp}
        _git(folder, dates, "commit", "--quiet", "--allow-empty", "-m", f"commit {night}")
        made.append(_git(folder, {}, "rev-parse", "HEAD").strip())
    return made


def _git(folder: Path, variables: Mapping[str, str], *arguments: str) -> str:
    who = {f"GIT_{role}_{what}": "tester" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), **who, **variables}
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, env=path)
    return done.stdout


def lane(samples_us: Sequence[float], **changes: Any) -> LaneRecord:
    """A decode cell with one timed bucket; `copies` counts as bytes too."""
    latency = Latency(
        arm="R", phase="decode", batch=2, bucket=2, median_us=1, p25_us=1, p75_us=1, samples_us=list(samples_us)
    )
    copies = {"staging": {"count": 7, "bytes": 300}}
    fields: dict[str, Any] = {
        "cell": CELL,
        "axes": AXES,
        "lane": "serving",
        "dtype": "bfloat16",
        "fate": Fate.MEASURED,
        "phase": Phase.TEARDOWN,
        "latency": [latency],
        "counters": {"per_bucket": {"2": {"segments": 1, "regions": 0, "copies": copies}}},
    }
    return LaneRecord(**{**fields, **changes})


def header(commit: str, night: float, **changes: Any) -> RunHeader:
    started = FIRST + timedelta(days=night)
    fields: dict[str, Any] = {
        "run": f"{started:%Y%m%dT%H%M%SZ}-quick-{commit[:4]}",
        "profile": "quick",
        "profile_hash": "p",
        "command": ["harness", "nightly"],
        "started": started.isoformat(),
        "cells": [CELL],
        "units": [f"{CELL}#serving"],
        "declared": {},
        "device": "cpu",
        "fingerprint": FACTS,
        "engine_revision": {"commit": commit, "dirty": "no", "dirty_digest": ""},
        "harness_revision": {},
    }
    return RunHeader(**{**fields, **changes})


def store(results: Path, commit: str, night: float, *lanes: LaneRecord, code: int = 0, **changes: Any) -> RunData:
    """Write one concluded run below `results`/runs and read it back."""
    made = header(commit, night, **changes)
    verdict = Verdict(
        run=made.run,
        exit_code=code,
        title="PASS: 1 of 1 cells" if not code else "FAIL: 1 of 1 cells",
        reasons=[],
        cells=[CellVerdict(cell=CELL, fate=Fate.MEASURED, reason="")],
        expected=1,
        executed=1,
        stored=1,
        reported=1,
        baseline="",
        finished=made.started,
        seconds=1.0,
    )
    with RunStore.create(results / "runs", made) as writing:
        for one in lanes:
            writing.append(one)
        writing.append(verdict)
    return load_run(writing.folder)
