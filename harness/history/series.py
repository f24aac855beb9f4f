"""Series of one figure over commits: from our own records, or from asv's result files.

A night that stored nothing left no gap in the plot, and four days of outage were read as four quiet days. A point that
has no finite value stays in its series as a hole, and the nights on which anything at all ran are kept beside it.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, UsageError
from harness.history.figures import Figure, figures_of_run
from harness.machine import series_key
from harness.store import RunData, list_runs, load_run

ASV_RESULTS_VERSION = 2
KINDS = ("run", "signoff")  # a comparison's records are of two revisions at once


@dataclass(frozen=True)
class Point:
    """One night's value. `value` is None where there was none to publish; `order` sorts by commit, then by start."""

    commit: str
    started: datetime
    value: float | None
    environment: Mapping[str, str] = field(default_factory=dict)
    order: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Series:
    name: str
    unit: str
    machine: str
    points: tuple[Point, ...]
    exact: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple(sorted(self.points, key=lambda point: point.order)))


@dataclass(frozen=True)
class History:
    """Every series, and every start of a run, whatever became of its figures. `unreadable` names what was left out."""

    series: tuple[Series, ...]
    starts: tuple[datetime, ...] = ()
    unreadable: tuple[str, ...] = ()

    def __add__(self, other: History) -> History:
        joined = (mine + theirs for mine, theirs in zip(self._parts(), other._parts(), strict=True))
        return History(*joined)  # type: ignore[arg-type]

    def _parts(self) -> tuple[tuple[Any, ...], ...]:
        return self.series, self.starts, self.unreadable


def history_of_records(runs: Path, checkout: Path, profile: str | None = None) -> History:
    """Series of the served arm's figures in every run below `runs`, of `profile` alone if given."""
    loaded, unreadable = [], []
    for folder in list_runs(runs):
        try:
            run = load_run(folder)
        except HarnessError as error:
            unreadable.append(str(error))
            continue
        if run.header.kind in KINDS and profile in (None, run.header.profile):
            loaded.append(run)
    return series_of_runs(loaded, commit_times(checkout), tuple(unreadable))


def series_of_runs(runs: Iterable[RunData], times: Mapping[str, float], unreadable: tuple[str, ...] = ()) -> History:
    """`times` gives seconds since the epoch for each commit; a commit that is not in it is placed by its run's start.

    A figure that a run of the same profile and machine has and another lacks is a hole in the other.
    """
    runs = list(runs)
    points: dict[tuple[str, str, str], dict[str, tuple[Point, Figure | None]]] = defaultdict(dict)
    places: dict[str, set[str]] = defaultdict(set)
    starts = []
    for run in runs:
        machine = series_key(run.header.fingerprint, run.header.device)
        starts.append(datetime.fromisoformat(run.header.started))
        for figure in figures_of_run(run):
            if figure.arm == "R":
                key = (machine, run.header.profile, figure.label)
                points[key][run.header.run] = _point(run, times, figure), figure
                places[run.header.run].add(figure.place)
    made = []
    for (machine, profile, label), found in points.items():
        figure = next(known for _, known in found.values() if known is not None)
        without = [run for run in _peers(runs, machine, profile) if figure.place not in places[run.header.run]]
        holes = [_point(run, times, None) for run in without]
        listed = (*(point for point, _ in found.values()), *holes)
        made.append(Series(label, figure.unit, machine, listed, figure.exact))
    return History(tuple(made), tuple(starts), unreadable)


def _peers(runs: Iterable[RunData], machine: str, profile: str) -> Iterator[RunData]:
    for run in runs:
        whole = run.header.profile == profile and not run.header.filters
        if whole and series_key(run.header.fingerprint, run.header.device) == machine:
            yield run


def _point(run: RunData, times: Mapping[str, float], figure: Figure | None) -> Point:
    header = run.header
    commit, digest = str(header.engine_revision["commit"]), str(header.engine_revision.get("dirty_digest", ""))
    started = datetime.fromisoformat(header.started)
    value = figure.value if figure is not None and figure.is_sound else None
    order = (times.get(commit, started.timestamp()), started.timestamp())
    environment = {"protocol": header.protocol, "profile": header.profile_hash, **environment_of(header.fingerprint)}
    return Point(commit + (f"+{digest}" if digest else ""), started, value, environment, order)


def environment_of(fingerprint: Mapping[str, Any]) -> dict[str, str]:
    """Every fact that has explained a figure which did not repeat, flat; what passes (the load) is left out."""
    chosen = {name: fingerprint.get(name) for name in ("cpu", "os", "gpus", "software", "environment")}
    return dict(_flat(chosen))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{path}.{index}")
    else:
        yield path, str(value)


def commit_times(checkout: Path) -> dict[str, float]:
    """Commit -> seconds since the epoch, of every commit that the checkout has; empty without git.

    A rebase gives many commits one date, so each is a microsecond after the one before it in topological order.
    """
    command = ["git", "--no-optional-locks", "-C", str(checkout), "log", "--all", "HEAD", "--topo-order", "--reverse"]
    try:
        done = subprocess.run([*command, "--format=%H %ct"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = (line.split() for line in done.stdout.splitlines())
    return {commit: float(seconds) + 1e-6 * rank for rank, (commit, seconds) in enumerate(lines)}


def history_of_asv(results: Path, times: Mapping[str, float] | None = None) -> History:
    """Series of every benchmark and parameter set below asv's `results` folder. Raises UsageError if there is none.

    `times` places the commits; one that is not in it is placed by the date in its file.
    """
    if not results.is_dir():
        raise UsageError(f"no asv results at {results}; make some with `make bench` or `harness backfill`")
    gathered: dict[tuple[str, str], list[Point]] = defaultdict(list)
    starts, unreadable = set(), []
    units = _asv_units(results / "benchmarks.json")
    for path in sorted(results.glob("*/*.json")):
        if path.name == "machine.json":
            continue
        try:
            for name, point in _asv_points(json.loads(path.read_text()), times or {}):
                gathered[path.parent.name, name].append(point)
                starts.add(point.started)
        except (OSError, ValueError, KeyError, TypeError) as error:
            unreadable.append(f"{path}: {type(error).__name__}: {error}")
    made = [
        Series(
            name, (unit := units.get(name.partition("(")[0], "")), machine, tuple(points), unit in ("bytes", "count")
        )
        for (machine, name), points in gathered.items()
    ]
    return History(tuple(made), tuple(sorted(starts)), tuple(unreadable))


def _asv_units(path: Path) -> dict[str, str]:
    try:
        listed = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {name: str(entry.get("unit")) for name, entry in listed.items() if isinstance(entry, dict)}


def _asv_points(data: Mapping[str, Any], times: Mapping[str, float]) -> Iterator[tuple[str, Point]]:
    if data["version"] != ASV_RESULTS_VERSION:
        raise ValueError(f"version {data['version']} of asv's results; this reads {ASV_RESULTS_VERSION}")
    facts = {"params": data["params"], "requirements": data["requirements"], "python": data["python"]}
    shared = dict(_flat({**facts, "env": data.get("env_vars", {}), "env_name": data["env_name"]}))
    for name, row in data["results"].items():
        columns = dict(zip(data["result_columns"], row, strict=False))
        stamp = columns.get("started_at") or data["date"]
        started = datetime.fromtimestamp(stamp / 1000, UTC)
        sets = list(product(*columns.get("params") or []))
        values = columns.get("result") or [None] * len(sets)
        environment = {**shared, "version": str(columns.get("version"))}
        order = (times.get(data["commit_hash"], data["date"] / 1000), started.timestamp())
        for given, value in zip(sets, values, strict=True):
            label = f"{name}({', '.join(given)})" if given else name
            yield label, Point(data["commit_hash"], started, _number(value), environment, order)


def _number(value: Any) -> float | None:
    """A finite number, or None: asv's step detection never ends on an infinity, and stops at a NaN."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
