"""Runs a profile's cells through the harness and finds the figures that asv's rows show.

asv stores a crash, a timeout and an exception alike as `null`, with neither exit code nor output, and an interrupt
loses its whole run. So every run is kept in `results/runs` as its cells end, and what went wrong with a cell travels
with its figures: the row that asks for them raises it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.cells import Cell
from harness.history.figures import PUBLISHED, Figure, figures_of
from harness.profiles import load_profile
from harness.records import RunHeader
from harness.store import RunData, list_runs, load_run

from . import CHECKOUT

Key = tuple[str, int, str]  # model, level, mode


class NoFigure(RuntimeError):
    """A row has nothing that may be published; the message says why."""


@dataclass(frozen=True)
class Axes:
    """What asv's rows of a profile sweep."""

    models: list[str]
    levels: list[int]
    modes: list[str]
    batches: list[int]
    ladder: str  # "1-2-4"
    narrowing: list[str]  # what the command line must add, because the profile sweeps more than decode

    @property
    def graphs(self) -> list[str]:
        """The modes that record something."""
        return [mode for mode in self.modes if mode != "NONE"]


def axes_of(profile: str) -> Axes:
    """The rows' axes of a profile, a name or a path. Raises ValueError for one that asv's rows cannot tell apart."""
    axes = load_profile(profile).axes
    for name in ("engine", "ladder", "op_backend"):
        if len(getattr(axes, name)) > 1:
            raise ValueError(
                f"profile {profile}: asv's rows have no axis for {name}, and it sweeps {len(getattr(axes, name))}; "
                "give asv a profile with one"
            )
    if "decode" not in axes.workload:
        raise ValueError(f"profile {profile}: it sweeps {', '.join(axes.workload)}, and asv's rows are decode steps")
    narrowing = [] if axes.workload == ["decode"] else ["--workload", "decode"]
    return Axes(axes.model, axes.level, axes.mode, sorted(axes.ladder[0]), _ladder(axes.ladder[0]), narrowing)


@dataclass(frozen=True)
class Figures:
    """What one run measured in decode, in the serving dtype. `failed` says why a cell has no figures."""

    figures: list[Figure] = field(default_factory=list)
    failed: dict[Key, str] = field(default_factory=dict)

    def samples(
        self,
        metric: str,
        model: str,
        level: int,
        mode: str,
        batch: int | None = None,
        kind: str = "",
        cache: str | None = None,
    ) -> list[float]:
        """The samples of one cell's figure, finite and not negative. Raises NoFigure.

        `cache` asks for a start that found its cache so; one that compiles nothing fits both.
        """
        cell = f"{model}, level {level}, mode {mode}"
        if reason := self.failed.get((model, level, mode)):
            raise NoFigure(f"{cell}: {reason}")
        wanted = (metric, batch, kind)
        found = [f for f in self.figures if _key(f.axes) == (model, level, mode)]
        found = [f for f in found if (f.metric, f.batch, f.kind) == wanted]
        for figure in found:
            if cache is None or figure.cache in ("", cache):
                return _finite(figure)
        if found:
            raise NoFigure(f"{cell}: the start was to find a {cache} cache and found it {found[0].cache}")
        where = "" if batch is None else f" at batch {batch}"
        raise NoFigure(f"{cell}: the run recorded no {metric}{f' of kind {kind}' if kind else ''}{where}")

    def value(self, metric: str, model: str, level: int, mode: str, batch: int | None = None, **more: Any) -> float:
        """The one value of a figure without spread. Raises NoFigure."""
        samples = self.samples(metric, model, level, mode, batch, **more)
        if len(samples) != 1:
            raise NoFigure(f"{metric} of level {level}, mode {mode} has {len(samples)} values where one is expected")
        return samples[0]


def measure(
    profile: str, results: Path, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> RunData:
    """Run every cell of `profile` (a name or a path) in processes of its own, kept in `results`/runs.

    `arguments` narrow it, as on the command line. Raises NoFigure with the last output.
    """
    before = set(list_runs(results / "runs"))
    command = [sys.executable, "-m", "harness", "run", "--profile", profile, "--results", str(results), "--fresh"]
    command += arguments
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
    made = [folder for folder in list_runs(results / "runs") if folder not in before]
    if len(made) != 1:
        raise NoFigure(f"{len(made)} new runs in {results / 'runs'}: let one command at a time measure there")
    return load_run(made[0])


def store() -> Path:
    """Where asv's runs are kept: the results of the running checkout, or PERFORMANCE_RESULTS."""
    return Path(os.environ.get("PERFORMANCE_RESULTS") or CHECKOUT / "results")


def decode_figures(run: RunData) -> Figures:
    """The figures of every recorded decode cell in its serving dtype, of the served arm alone."""
    found = Figures(failed=_unsupported(run.header))
    for lane in run.lanes:
        if lane.lane != "serving" or lane.axes["workload"] != "decode":
            continue
        if lane.fate in PUBLISHED:
            found.figures.extend(figure for figure in figures_of(lane) if figure.arm == "R")
        else:
            found.failed[_key(lane.axes)] = f"{lane.fate.value}: {lane.reason or lane.phase.value}"
    return found


def _unsupported(header: RunHeader) -> dict[Key, str]:
    """The cells that were declared and not executed. A cell's name leaves its defaults out, so names are made again."""
    if not header.declared:
        return {}
    axes = header.profile_text["axes"]
    keys = [(model, level, mode) for model in axes["model"] for level in axes["level"] for mode in axes["mode"]]
    rest = {"engine": axes["engine"][0], "op_backend": axes["op_backend"][0], "ladder": axes["ladder"][0]}
    names = {
        Cell.of(model=model, level=level, mode=mode, **rest).id: (model, level, mode) for model, level, mode in keys
    }
    return {names[cell]: f"unsupported: {reason}" for cell, reason in header.declared.items() if cell in names}


def _ladder(sizes: Sequence[int]) -> str:
    return "-".join(map(str, sizes))


def _key(axes: Mapping[str, Any]) -> Key:
    return axes["model"], axes["level"], axes["mode"]


def _finite(figure: Figure) -> list[float]:
    """asv turns one NaN into n/a for the whole row, and one infinity makes its publishing hang."""
    if not figure.is_sound:
        listed = list(figure.samples[:5])
        raise NoFigure(f"{figure.label}: figures must be finite and not negative, and there must be some; got {listed}")
    return list(figure.samples)
