"""Expected values edited by hand drifted from what anybody had measured. They come from a recorded run, through one
command, as a file that is reviewed; these tests drive that command as its users do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from suites.instrument.spine import fake_environment, harness, write_profile

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    profile = write_profile(tmp_path, level="[0]")

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        profiled = ["--profile", str(profile), "--device", "cpu"] if name == "signoff" else []
        return harness(name, *arguments, *profiled, cwd=tmp_path, env=fake_environment())

    return run


def only_baseline(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "results" / "baselines").glob("*/fake.json")
    return file


def test_a_run_is_accepted_and_the_next_one_is_held_against_it(tmp_path: Path, command: Command) -> None:
    code, out, err = command("signoff")
    assert (code, "no baseline, so not gated" in out) == (0, True), err
    code, out, err = command("accept")
    assert (code, "2 lanes of" in out, "review it with `git diff`" in out) == (0, True, True), err
    code, out, err = command("signoff")
    assert code == 0, err
    assert "gated: exact counts at zero change" in " ".join(out.split())
    accepted = only_baseline(tmp_path).read_text()
    only_baseline(tmp_path).write_text(accepted.replace('"recording/segments.2": 3', '"recording/segments.2": 2'))
    code, out, _ = command("signoff")
    assert (code, "2 cost-changed" in out, "segments.2 2 -> 3" in " ".join(out.split())) == (1, True, True)
    code, out, _ = command("signoff", "--no-baseline")
    assert (code, "--no-baseline: an accepted baseline was not looked for" in " ".join(out.split())) == (0, True)
    only_baseline(tmp_path).write_text(accepted.replace('"recording/segments.2": 3', '"recording/segments.2": 4'))
    code, out, _ = command("signoff")
    assert (code, "2 faster" in out) == (3, True)
    code, out, err = command("accept", "--cell", "mode=NONE")
    assert (code, "recording/segments.2: 4 -> 3" in out) == (0, True), err
    code, out, _ = command("signoff")
    assert (code, "1 faster, 1 measured" in out) == (3, True)


def test_what_cannot_be_accepted_is_refused_with_its_reason(tmp_path: Path, command: Command) -> None:
    code, _, err = command("accept")
    assert (code, "no run below" in err) == (2, True)
    profile = write_profile(tmp_path, level="[0]")
    env = fake_environment({"mode=FULL": "wrong"})
    assert harness("signoff", "--profile", str(profile), "--device", "cpu", cwd=tmp_path, env=env)[0] == 1
    code, _, err = command("accept", "--cell", "mode=FULL")
    assert (code, "is wrong" in err) == (2, True)
    code, _, err = command("accept", "--cell", "mode=SOME")
    assert (code, "no cell fits" in err) == (2, True)
    assert not (tmp_path / "results" / "baselines").exists()
    code, out, err = command("accept")
    assert (code, "left out: " in out, "1 lanes of" in out) == (0, True, True), err
    assert os.stat(only_baseline(tmp_path)).st_size > 0
