"""Runs a profile's cells through the harness and finds the figures that asv's rows show.

asv stores a crash, a timeout and an exception alike as `null`, with neither exit code nor output. So what went wrong
with a cell travels with its figures, and the row that asks for them raises it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.history.figures import PUBLISHED, Figure, figures_of
from harness.store import RunData, list_runs, load_run

from . import CHECKOUT


class NoFigure(RuntimeError):
    """A row has nothing that may be published; the message says why."""


@dataclass(frozen=True)
class Figures:
    """What one run measured in decode, in the serving dtype. `failed` says why a cell has no figures."""

    figures: list[Figure] = field(default_factory=list)
    failed: dict[tuple[str, int, str], str] = field(default_factory=dict)  # (model, level, mode)

    def samples(
        self, metric: str, model: str, level: int, mode: str, batch: int | None = None, kind: str = ""
    ) -> list[float]:
        """The samples of one cell's figure, finite and not negative. Raises NoFigure."""
        cell = f"{model}, level {level}, mode {mode}"
        if reason := self.failed.get((model, level, mode)):
            raise NoFigure(f"{cell}: {reason}")
        for figure in self.figures:
            if _key(figure.axes) == (model, level, mode) and (figure.metric, figure.batch, figure.kind) == (
                metric,
                batch,
                kind,
            ):
                return _finite(figure)
        where = "" if batch is None else f" at batch {batch}"
        raise NoFigure(f"{cell}: the run recorded no {metric}{f' of kind {kind}' if kind else ''}{where}")

    def value(self, metric: str, model: str, level: int, mode: str, batch: int | None = None, kind: str = "") -> float:
        """The one value of a figure without spread. Raises NoFigure."""
        samples = self.samples(metric, model, level, mode, batch, kind)
        if len(samples) != 1:
            raise NoFigure(f"{metric} of level {level}, mode {mode} has {len(samples)} values where one is expected")
        return samples[0]


def measure(profile: str, results: Path, environment: Mapping[str, str] | None = None) -> RunData:
    """Run every cell of `profile` (a name or a path) in processes of its own. Raises NoFigure with the last output."""
    command = [sys.executable, "-m", "harness", "run", "--profile", profile, "--results", str(results), "--fresh"]
    if device := os.environ.get("PERFORMANCE_DEVICE"):
        command += ["--device", device]
    done = subprocess.run(
        command,
        cwd=os.environ.get("PERFORMANCE_ROOT", CHECKOUT),  # asv's environment puts the engine of a commit there
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-30:])
        raise NoFigure(f"`harness run --profile {profile}` ended with exit code {done.returncode}:\n{last}")
    return load_run(next(iter(list_runs(results / "runs"))))


def decode_figures(run: RunData) -> Figures:
    """The figures of every recorded decode cell in its serving dtype, of the served arm alone."""
    found = Figures()
    for lane in run.lanes:
        if lane.lane != "serving" or lane.axes["workload"] != "decode":
            continue
        if lane.fate in PUBLISHED:
            found.figures.extend(figure for figure in figures_of(lane) if figure.arm == "R")
        else:
            found.failed[_key(lane.axes)] = f"{lane.fate.value}: {lane.reason or lane.phase.value}"
    return found


def _key(axes: Mapping[str, Any]) -> tuple[str, int, str]:
    return axes["model"], axes["level"], axes["mode"]


def _finite(figure: Figure) -> list[float]:
    """asv turns one NaN into n/a for the whole row, and one infinity makes its publishing hang."""
    if not figure.is_sound:
        listed = list(figure.samples[:5])
        raise NoFigure(f"{figure.label}: figures must be finite and not negative, and there must be some; got {listed}")
    return list(figure.samples)
