"""What the tests of the harness's spine share: a small profile for the fake engine, and the command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.profile import Profile
from harness.profiles import load_profile

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]

PROFILE = """
name = "fake"
title = "cells without a model"

[axes]
engine = ["fake"]
model = ["fake-model"]
level = [0, 3]
mode = ["NONE", "FULL"]
workload = ["decode"]
ladder = [[1, 2]]

[limits]
max_num_seqs = 2
max_model_len = 16
block_size = 4
num_blocks = 8

[numerics]
float32_lane = false

[time_limits]
build_s = 60.0
compile_s = 1.0
capture_s = 0.5
replay_s = 20.0
teardown_s = 20.0
"""


def write_profile(folder: Path, **replacements: str) -> Path:
    """PROFILE with `name=text` in place of the line that begins with `name = `."""
    lines = PROFILE.splitlines()
    for name, text in replacements.items():
        assert any(line.startswith(f"{name} = ") for line in lines), name
        lines = [f"{name} = {text}" if line.startswith(f"{name} = ") else line for line in lines]
    path = folder / "fake.toml"
    path.write_text("\n".join(lines))
    return path


def fake_profile(folder: Path, **replacements: str) -> Profile:
    return load_profile(str(write_profile(folder, **replacements)))


def fake_environment(
    behaviours: Mapping[str, str] | None = None, journal: Path | None = None, checkout: Path = CHECKOUT
) -> dict[str, str]:
    """The environment in which `--engine fake` is known to the harness of `checkout`."""
    added = {
        "HARNESS_ENGINES": "fake=fake_engine:FakeEngine",
        "HARNESS_PROBES": "fake_engine:measure",
        "FAKE_ENGINE": json.dumps(behaviours or {}),
        "FAKE_JOURNAL": str(journal or ""),
        "PYTHONPATH": os.pathsep.join([str(checkout), str(HERE)]),
        "OMP_NUM_THREADS": "1",
    }
    return {**os.environ, **added}


def start(*arguments: str, cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """`harness ...` in a session of its own, so that a signal to it reaches nothing else."""
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def harness(*arguments: str, cwd: Path, env: Mapping[str, str], timeout_s: float = 120) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    process = start(*arguments, cwd=cwd, env=env)
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return process.returncode, out, err
