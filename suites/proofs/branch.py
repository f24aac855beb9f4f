"""A repository of this checkout's engine and harness, with a branch of commits of which one makes every step dearer.

A planted sleep proves that a clock runs. Here the work is real, of the kind that creeps into a step (more Python for
each one), and as much of it as was measured to be a tenth of the step.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.store import RunData, list_runs, load_run
from suites.instrument.spine import CHECKOUT, harness
from suites.instrument.test_compare import git

STEP = Path("atom_impl", "model_engine", "model_runner.py")
BEFORE = "        record = _open_record(mode)\n"
WORK = "sum(number * number for number in range({count}))"
#: Both kinds of graph step, small enough for a night to take seconds; deep enough for a step to take milliseconds.
PROFILE = """
name = "proof"
title = "a random Llama of twelve layers, with request graphs"

[axes]
model = ["random:tiny-llama?layers=12"]
level = [0]
mode = ["FULL"]
workload = ["decode"]
ladder = [[1, 2]]

[limits]
max_num_seqs = 2
max_model_len = 64
block_size = 16
num_blocks = 12

[numerics]
input_sets = 1
replays = 2
float32_lane = false

[timing]
warmup_steps = 5
samples = 60

[comparison]
quads = 8
block_steps = 10
"""


@dataclass(frozen=True)
class Branch:
    """`commits`, oldest first; `slow` is the one from which on a step takes a tenth longer."""

    root: Path
    profile: Path
    device: str
    commits: list[str]
    slow: str = ""

    def run(self, *arguments: str, timeout_s: float = 900) -> tuple[int, str]:
        """`harness ...` with the engine and the harness of this repository; exit code and output."""
        env = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        options = ["--profile", str(self.profile), "--device", self.device, "--results", str(self.results)]
        code, out, err = harness(*arguments, *options, cwd=self.root, env=env, timeout_s=timeout_s)
        return code, out + err

    def night(self, commit: str) -> tuple[int, str]:
        git(self.root, "checkout", "--quiet", commit)
        return self.run("nightly", "--no-publish")

    @property
    def results(self) -> Path:
        return self.root.with_name("results")

    def newest(self) -> RunData:
        return load_run(list_runs(self.results / "runs")[0])


def make_branch(folder: Path, device: str, count: int, slow_at: int | None = None, share: float = 0.10) -> Branch:
    """`count` commits, each with an edit of its own; the one at `slow_at` adds `share` of a measured step to each."""
    root = folder / "repository"
    for package in ("atom_impl", "harness"):
        shutil.copytree(CHECKOUT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("__pycache__/\n")
    profile = folder / "proof.toml"
    profile.write_text(PROFILE)
    git(root, "init", "--quiet")
    branch = Branch(root, profile, device, [])
    added = "" if slow_at is None else f"        {WORK.format(count=loops(branch, share))}\n"
    path, clean = root / STEP, (root / STEP).read_text()
    assert clean.count(BEFORE) == 1, f"{STEP} opens its record elsewhere now; plant the work there"
    for index in range(count):
        slow = slow_at is not None and index >= slow_at
        path.write_text(clean.replace(BEFORE, BEFORE + added if slow else BEFORE) + f"# edit {index}\n")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", f"edit {index}")
        branch.commits.append(git(root, "rev-parse", "HEAD"))
    return Branch(root, profile, device, branch.commits, "" if slow_at is None else branch.commits[slow_at])


def loops(branch: Branch, share: float) -> int:
    """How many turns of the added loop take `share` of the shortest step, as measured on this machine now.

    Both by their fastest sample: another process on a core is in the slower ones of either.
    """
    code, out = branch.run("run", "--fresh")
    assert code == 0, out
    timed = [entry for lane in branch.newest().lanes for entry in lane.latency if entry.arm == "R"]
    step_us = min(min(entry.samples_us) for entry in timed)
    shutil.rmtree(branch.results)
    return round(share * step_us / turn_us())


def turn_us() -> float:
    """Microseconds of one turn of the added loop, in a process of its own."""
    turns = 20000
    script = f"import timeit; print(*timeit.repeat(lambda: {WORK.format(count=turns)}, number=1, repeat=30))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120)
    return min(map(float, done.stdout.split())) * 1e6 / turns
