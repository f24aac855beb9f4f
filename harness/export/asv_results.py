"""Stored records as asv's result files.

asv writes once, after everything: an interrupt lost the night. Our store keeps each cell as it ends, so a night is
measured once, by the harness, and asv gets its pages from the records afterwards.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.cells import DEFAULTS
from harness.errors import UsageError
from harness.export.asv_machine import describe
from harness.export.recognise import commit_of
from harness.history.figures import Figure, figures_of_run
from harness.history.series import commit_times
from harness.host import UNKNOWN
from harness.store import RunData

BENCHMARKS = "benchmarks.json"
ENVIRONMENT = "harness"
#: The parameters that grow by what a night sweeps. Another model is not: the suite says which ones asv follows.
GROWING = ("level", "mode", "batch", "ladder")
#: What a header's `sources` is the digest of, in this order.
CODE = ("harness", "atom_impl")
#: Software that makes another line of a plot, as asv's requirements do.
REQUIREMENTS = ("torch", "triton", "aiter", "rocm")


@dataclass(frozen=True)
class Backfilled:
    """What one run gave: the file, how many rows it filled, and what they lack; or why nothing was written."""

    run: str
    path: Path | None = None
    rows: int = 0
    skipped: str = ""
    without: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.run}: left out: {self.skipped}"
        return f"{self.run}: {self.rows} rows in {self.path}" + (f", without {self.without}" if self.without else "")


class _Result(NamedTuple):
    """What asv's `Results.add_result` reads of a benchmark that ran."""

    result: list[float | None]
    samples: list[list[float] | None]
    number: list[int | None]
    errcode: int = 0
    stderr: str = ""
    profile: bytes | None = None


def discover(checkout: Path, results: Path) -> dict[str, dict[str, Any]]:
    """Every benchmark of the checkout's suite as asv finds it, in `results`/benchmarks.json too.

    Raises UsageError without asv, or if the suite cannot be imported.
    """
    _require_asv()
    folder = _benchmark_dir(checkout)
    script = (
        "import sys, asv_runner.discovery as found; sys.path.insert(0, sys.argv[1]);"
        "found.list_benchmarks(sys.argv[2], open(sys.argv[3], 'w'))"
    )
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("r", suffix=".json") as listed:
        command = [sys.executable, "-c", script, str(folder.parent), str(folder), listed.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder.parent)
        if done.returncode:
            raise UsageError(f"asv cannot import {folder}: {done.stderr.strip()[-800:]}")
        benchmarks = {row["name"]: row for row in json.load(listed)}
    _write_json(results / BENCHMARKS, {**benchmarks, "version": 2})
    return benchmarks


def backfill(
    runs: Iterable[RunData],
    checkout: Path,
    results: Path,
    benchmarks: Mapping[str, Mapping[str, Any]],
    machine: str = "",
) -> list[Backfilled]:
    """Write or complete asv's result file of each run's commit and machine, one run after the other.

    `machine` names it in place of its hardware.
    """
    times = commit_times(checkout)
    ordered = sorted(runs, key=lambda run: run.header.started)
    benchmarks = {name: _widened(row, ordered) for name, row in benchmarks.items()}
    _write_json(results / BENCHMARKS, {**benchmarks, "version": 2})
    return [_backfill_one(_placed(run, checkout), times, results, benchmarks, machine) for run in ordered]


def _placed(run: RunData, checkout: Path) -> RunData:
    """The run, with the commit that its sources are of where its machine had no git to ask."""
    revision = run.header.engine_revision
    if revision.get("commit") != UNKNOWN or not revision.get("sources"):
        return run
    commit = commit_of(checkout, CODE, str(revision["sources"]))
    if not commit:
        return run
    known = {**revision, "commit": commit, "dirty": "no", "dirty_digest": ""}
    return replace(run, header=msgspec.structs.replace(run.header, engine_revision=known))


def _backfill_one(
    run: RunData,
    times: Mapping[str, float],
    results: Path,
    benchmarks: Mapping[str, Mapping[str, Any]],
    machine: str,
) -> Backfilled:
    header = run.header
    commit = str(header.engine_revision.get("commit", UNKNOWN))
    if commit not in times:
        return Backfilled(header.run, skipped=f"its commit {commit[:12]} is not in this repository")
    if header.engine_revision.get("dirty_digest"):
        return Backfilled(header.run, skipped=f"it ran edits that {commit[:12]} does not hold")
    filled = {name: _fill(row, run) for name, row in benchmarks.items()}
    filled = {name: made for name, made in filled.items() if any(value is not None for value in made.result)}
    if not filled:
        return Backfilled(header.run, skipped="no row of the suite is a cell of this run")
    described = describe(run.header.fingerprint, run.header.device, machine)
    path = _save(run, commit, times[commit], results, filled, benchmarks, described)
    count = sum(value is not None for made in filled.values() for value in made.result)
    return Backfilled(header.run, path, count, without=_busy(run))


def _busy(run: RunData) -> str:
    """Why this run's times are nobody's: other programs had the processor when it began. "" if they had not."""
    facts = run.header.fingerprint
    try:
        load, cores = float(facts["now"]["load_1min"]), float(facts["cpu"]["usable_cores"])
    except (KeyError, TypeError, ValueError):  # a machine that does not tell is not known to have been busy
        return ""
    return f"times: the load was {load:g} on {cores:g} cores when it began" if load > cores else ""


def _widened(benchmark: Mapping[str, Any], runs: Iterable[RunData]) -> dict[str, Any]:
    """The row with every level, mode, batch and ladder of the runs among its parameters."""
    params = [list(values) for values in benchmark["params"]]
    for name, values in zip(benchmark["param_names"], params, strict=True):
        if name in GROWING:
            seen = {repr(_fact(figure, name)) for run in runs for figure in _figures(benchmark, run)}
            values += sorted(seen - set(values), key=lambda text: (len(text), text))
    return {**benchmark, "params": params}


def _figures(benchmark: Mapping[str, Any], run: RunData) -> list[Figure]:
    """The served figures that this row could show: of its metric, in decode, of a model that it names.

    Exact figures hold whatever else the machine did; times of a busy one do not.
    """
    metric = re.sub(r"^.*\.track_", "", benchmark["name"])
    models = benchmark["params"][benchmark["param_names"].index("model")]
    kinds = "kind" in benchmark["param_names"]
    return [
        figure
        for figure in figures_of_run(run)
        if (figure.metric, figure.arm, figure.lane) == (metric, "R", "serving")
        and figure.is_sound
        and (figure.exact or not _busy(run))
        and _fact(figure, "workload") == "decode"
        and repr(_fact(figure, "model")) in models
        and bool(figure.kind) == kinds
    ]


def _fact(figure: Figure, name: str) -> Any:
    """A parameter's value, as the suite's rows say it."""
    value = {**DEFAULTS, **figure.axes, "batch": figure.batch, "kind": figure.kind, "cache": figure.cache}[name]
    return "-".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _fill(benchmark: Mapping[str, Any], run: RunData) -> _Result:
    """One entry a parameter set, None where the run has no such figure."""
    figures = _figures(benchmark, run)
    made = _Result([], [], [])
    for values in product(*benchmark["params"]):
        figure = _find(figures, dict(zip(benchmark["param_names"], values, strict=True)))
        made.result.append(None if figure is None else figure.value)
        made.samples.append(None if figure is None else list(figure.samples))
        made.number.append(None if figure is None or figure.exact else 1)
    return made


def _find(figures: Sequence[Figure], wanted: Mapping[str, str]) -> Figure | None:
    """The one figure that `wanted` (name -> repr, as asv keeps it) describes; None if there is no single one."""
    fits = [figure for figure in figures if all(_says(figure, name, text) for name, text in wanted.items())]
    return fits[0] if len(fits) == 1 else None


def _says(figure: Figure, name: str, text: str) -> bool:
    if name == "cache" and not figure.cache:
        return True  # a start that compiles nothing fits every state
    return repr(_fact(figure, name)) == text


def _save(
    run: RunData,
    commit: str,
    committed: float,
    results: Path,
    filled: Mapping[str, _Result],
    benchmarks: Mapping[str, Mapping[str, Any]],
    machine: Mapping[str, Any],
) -> Path:
    from asv.results import Results

    software = run.header.fingerprint.get("software", {})
    requirements = {name: str(software[name]) for name in REQUIREMENTS if software.get(name, UNKNOWN) != UNKNOWN}
    python = str(software.get("python", UNKNOWN))
    name = "-".join([ENVIRONMENT, f"py{python}", *(f"{key}{value}" for key, value in requirements.items())])
    params = {**machine, "python": python, **requirements}
    params.pop("version")
    made = Results(params, requirements, commit, int(committed) * 1000, python, name, {})
    made.load_data(str(results))
    for key, result in filled.items():
        known = made.get_all_result_keys()
        again = key in known and made.benchmark_version.get(key) == benchmarks[key]["version"]
        made.add_result(
            benchmarks[key],
            result,
            started_at=datetime.fromisoformat(run.header.started).astimezone(UTC),
            record_samples=True,
            selected_idx={index for index, value in enumerate(result.result) if value is not None} if again else None,
        )
    folder = results / machine["machine"]
    _write_json(folder / "machine.json", machine)
    with tempfile.TemporaryDirectory(dir=results) as whole:  # asv's own write may be cut short
        made.save(whole)
        (written,) = Path(whole).rglob("*.json")
        target = folder / written.name
        os.replace(written, target)
    return target


def _benchmark_dir(checkout: Path) -> Path:
    """What asv.conf.json names. The file may hold comments, which JSON has none of."""
    try:
        text = (checkout / "asv.conf.json").read_text()
    except OSError as error:
        raise UsageError(f"{checkout / 'asv.conf.json'} cannot be read: {error.strerror}") from error
    found = re.search(r'"benchmark_dir"\s*:\s*"([^"]+)"', text)
    if found is None:
        raise UsageError(f"{checkout / 'asv.conf.json'} names no benchmark_dir")
    return checkout / found[1]


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=4, sort_keys=True) + "\n")
    os.replace(partial, path)


def _require_asv() -> None:
    from importlib.util import find_spec

    if find_spec("asv") is None or find_spec("asv_runner") is None:
        raise UsageError("asv is not installed: pip install asv==0.6.6 asv_runner==0.3.2, or the [asv] extra")
