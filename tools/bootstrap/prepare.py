"""Decides which environment this machine needs, and makes it once.

A machine that shows a GPU and has no torch built for one gets no CPU torch unless it is asked for by name: passing
there on the CPU is the silent fallback that this project exists to catch.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.bootstrap import fill, stamp
from tools.bootstrap.errors import EnvironmentUnfit, say
from tools.bootstrap.torch_build import GPU_NODES, TorchBuild, find_torch
from tools.bootstrap.venv import Venv, own_folders

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = ROOT / "pyproject.toml"
CPU_PINS = ROOT / "constraints-cpu.txt"


@dataclass(frozen=True)
class Plan:
    """`overlaid` is the GPU torch that stays as it is; None means that the pinned CPU torch is installed."""

    overlaid: TorchBuild | None
    key: str


def make_plan(device: str | None, found: TorchBuild | None, nodes: Iterable[Path] = GPU_NODES) -> Plan:
    """The environment for a machine that shows `nodes` and has `found`. Raises EnvironmentUnfit as the module says."""
    overlaid = found if found and found.gpu else None
    shown = [str(node) for node in nodes if node.exists()]
    if overlaid is None and shown and device != "cpu":
        have = f"torch {found.version}, a CPU build" if found else "no torch"
        raise EnvironmentUnfit(
            f"this machine shows a GPU ({', '.join(shown)}) and {sys.executable} has {have}. Name the interpreter that "
            "has the GPU's torch (make PYTHON=/path/to/python), or ask for the CPU (make DEVICE=cpu)"
        )
    return Plan(overlaid, stamp.key([PYPROJECT, CPU_PINS], overlaid))


def prepare(folder: Path, device: str | None) -> None:
    """Bring `folder` to the state that this checkout and this machine need; return at once if it is there."""
    plan = make_plan(device, find_torch())
    if stamp.is_ready(folder, plan.key):
        return
    with _alone():
        if not stamp.is_ready(folder, plan.key):
            _make(Venv(folder, ROOT), plan)


@contextmanager
def _alone() -> Iterator[None]:
    """One set-up of this checkout at a time: two terminals may both say `make`."""
    held = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _make(venv: Venv, plan: Plan) -> None:
    started = time.monotonic()
    _lay_out(venv, plan)
    if plan.overlaid:
        fill.around(venv, plan.overlaid, PYPROJECT)
    else:
        fill.with_cpu_torch(venv, PYPROJECT, CPU_PINS)
    venv.link_checkout()
    stamp.Stamp(plan.key, sys.executable, ready=True).write(venv.folder)
    say(f"{venv.folder} is ready after {time.monotonic() - started:.0f} s")


def _lay_out(venv: Venv, plan: Plan) -> None:
    """An empty or a usable environment in `venv`, marked as not ready."""
    if venv.folder.exists() and (reason := _unusable(venv, plan)):
        if stamp.read(venv.folder) is None:
            raise EnvironmentUnfit(f"{venv.folder} was not made here and {reason}; move it away and try again")
        say(f"making {venv.folder} anew: it {reason}")
        venv.remove()
    stamp.Stamp(plan.key, sys.executable).write(venv.folder)
    if not venv.python.exists():
        say(f"making {venv.folder} with Python {'.'.join(map(str, sys.version_info[:3]))} of {sys.executable}")
        venv.create()
    venv.overlay(own_folders(plan.overlaid.folder) if plan.overlaid else [])


def _unusable(venv: Venv, plan: Plan) -> str:
    """What is wrong with the existing folder for `plan`, as the end of a sentence; "" if it will do."""
    if not venv.python.exists():
        return "holds no bin/python" if any(venv.folder.iterdir()) else ""
    try:
        facts = venv.facts()
    except EnvironmentUnfit:
        return "holds a Python that does not run"
    if facts["python"] != list(sys.version_info[:3]):
        return f"holds Python {'.'.join(map(str, facts['python']))}"
    torch = facts["torch"]
    if plan.overlaid and torch and Path(torch["folder"]).is_relative_to(venv.folder.resolve()):
        return f"holds a torch of its own ({torch['version']}) that would hide {plan.overlaid.version}"
    return ""
