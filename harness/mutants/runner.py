"""Run one mutant as a user would meet it: `harness signoff` in a child process, with the change made only there.

A fault injected into a test's own process is found by the test's own imports. Here the child knows nothing but an
engine's name, and the verdict is read from the run that it left on disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import harness
from harness.errors import HarnessError
from harness.mutants.engine import CONTROL, MUTANT_VARIABLE, PLANTED
from harness.mutants.findings import Finding, findings, gates_seen, reached
from harness.mutants.mutant import Mutant, Where
from harness.plugins import ENGINES_VARIABLE
from harness.store import RunData, list_runs, load_run

CHECKOUT = Path(harness.__file__).resolve().parents[1]
LIMIT_S = 420.0


class State(str, Enum):
    CAUGHT = "caught"  # by a gate that the mutant names, and the control was silent
    ELSEWHERE = "elsewhere"  # only by gates that the mutant does not name: the message misleads
    SURVIVED = "survived"
    KNOWN = "survives"  # nothing sees this fault yet, and the mutant says why
    SEEN = "seen"  # declared to survive, and something sees it
    ALARM = "control fired"
    IDLE = "control idle"  # the control's changed code was never entered, so its silence proves nothing
    BROKEN = "broken"  # the child left no record to read, or the change could not be made


@dataclass(frozen=True)
class Outcome:
    """What came of one mutant. `finding` is the first of the gates that the mutant names, else the first of any."""

    mutant: Mutant
    state: State
    finding: Finding | None
    others: tuple[str, ...]
    alarm: Finding | None
    seconds: float
    gates: dict[str, bool] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.state in (State.CAUGHT, State.KNOWN)


@dataclass(frozen=True)
class Ground:
    """Where mutants are run: the profile, the folder for the children's runs, the device, the shared compile cache."""

    profile: Path
    folder: Path
    device: str | None = None


def run_mutant(path: Path, mutant: Mutant, ground: Ground) -> Outcome:
    """Plant the fault and its control in children of their own and judge what they recorded."""
    begun = time.monotonic()
    together = mutant.where is Where.WORKER and not mutant.own_cache
    sides = [[PLANTED, CONTROL]] if together else [[PLANTED], [CONTROL]]
    try:
        runs = {side: run for group in sides for run in [_child(path, mutant, ground, group)] for side in group}
    except _NoRecord as error:
        broken = Finding("no record", str(error))
        return Outcome(mutant, State.BROKEN, broken, (), None, time.monotonic() - begun)
    return judge(mutant, runs[PLANTED], runs[CONTROL], time.monotonic() - begun)


def judge(mutant: Mutant, planted: RunData, control: RunData, seconds: float) -> Outcome:
    """The outcome that the two sides' records add up to."""
    found, alarms = findings(planted, PLANTED), findings(control, CONTROL)
    named = [finding for finding in found if finding.name in mutant.caught_by]
    first = next(iter([*named, *found]), None)
    others = tuple(dict.fromkeys(f.name for f in found if first is not None and f.name != first.name))
    alarm = next(iter(alarms), None)
    state = _state(mutant, found, named, alarm)
    # A record holds the worker's count, and a change of the command is entered there or nowhere.
    counted = mutant.where is Where.WORKER
    if counted and state in (State.CAUGHT, State.KNOWN) and reached(control, CONTROL) == 0:
        state = State.IDLE
    return Outcome(mutant, state, first, others, alarm, round(seconds, 1), gates_seen(planted, PLANTED))


def _state(mutant: Mutant, found: Sequence[Finding], named: Sequence[Finding], alarm: Finding | None) -> State:
    if any(map(_not_planted, found)) or (alarm is not None and _not_planted(alarm)):
        return State.BROKEN
    if alarm is not None:
        return State.ALARM
    if mutant.survives:
        return State.SEEN if found else State.KNOWN
    if named:
        return State.CAUGHT
    return State.ELSEWHERE if found else State.SURVIVED


def _not_planted(finding: Finding) -> bool:
    """A change that could not be made, or a child that did not even import what it was to run."""
    return finding.name == "crashed in import" or "PatchError" in finding.message


class _NoRecord(Exception):
    """The child ended without a run that can be read."""


def _child(path: Path, mutant: Mutant, ground: Ground, sides: Sequence[str]) -> RunData:
    folder = ground.folder / path.stem / "-".join(sides)
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output.txt"
    with output.open("w") as stream:
        try:
            code = subprocess.run(
                command(mutant, ground, sides, folder),
                cwd=folder,
                env=_environment(path, mutant, ground, sides, folder),
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=LIMIT_S,
            ).returncode
        except subprocess.TimeoutExpired:
            raise _NoRecord(f"the command took more than {LIMIT_S:g} s") from None
    newest = next(iter(list_runs(folder / "runs")), None)
    tail = " / ".join(output.read_text(errors="replace").splitlines()[-3:])
    if newest is None:
        raise _NoRecord(f"the command ended with {code} and left no run: {tail}")
    try:
        return load_run(newest)
    except HarnessError as error:
        raise _NoRecord(f"the run cannot be read ({error}): {tail}") from error


def command(mutant: Mutant, ground: Ground, sides: Sequence[str], folder: Path) -> list[str]:
    """The public command, narrowed to the cell that the mutant asks for."""
    words = [sys.executable, "-m", "harness", "signoff", "--fresh", "--profile", str(ground.profile)]
    options: dict[str, object] = {
        "level": mutant.level,
        "mode": mutant.mode,
        "workload": mutant.workload,
        "dtype": mutant.dtype,
        "model": mutant.model,
        "device": ground.device,
        "results": folder,
    }
    for side in sides:
        words += ["--engine", side]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    return words


def _environment(path: Path, mutant: Mutant, ground: Ground, sides: Sequence[str], folder: Path) -> dict[str, str]:
    cache = folder if mutant.own_cache else ground.folder
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        ENGINES_VARIABLE: ",".join(f"{side}=harness.mutants.engine:{side}" for side in sides),
        MUTANT_VARIABLE: str(path),
        # A faulty compiler's artefacts must never be found by an ordinary run.
        "ATOM_CACHE_ROOT": str(cache.resolve() / "compiled"),
        # Inductor's cache does not look at an operator's schema either: a fault would find the control's code there.
        **({"TORCHINDUCTOR_CACHE_DIR": str(cache.resolve() / "inductor")} if mutant.own_cache else {}),
    }
