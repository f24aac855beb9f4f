"""Guards against a figure of edited code that is kept under the name of the commit it was edited from."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.machine import revision
from harness.revision import carry, engine_and_harness


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "model.py").write_text("x = 1\n")
    (folder / ".gitignore").write_text("results\n")
    git(folder, "init", "-q")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")


def test_a_clean_checkout_is_named_by_its_commit(checkout: Path) -> None:
    assert revision(checkout) == {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": "no", "dirty_digest": ""}
    (checkout / "results").mkdir()
    (checkout / "results" / "run.jsonl").write_text("{}")
    assert revision(checkout)["dirty"] == "no"


def test_every_kind_of_edit_makes_another_tree_and_undoing_it_makes_the_same_again(checkout: Path) -> None:
    def edit(change: Callable[[], Any]) -> str:
        change()
        found = revision(checkout)
        git(checkout, "reset", "-q", "--hard")
        git(checkout, "clean", "-qfd")
        assert found["dirty"] == "yes"
        return found["dirty_digest"]

    model, new = checkout / "model.py", checkout / "new.py"
    digests = [
        edit(lambda: model.write_text("x = 2\n")),
        edit(lambda: model.write_text("x = 3\n")),
        edit(lambda: model.chmod(0o755)),
        edit(model.unlink),
        edit(lambda: new.write_text("y = 1\n")),
        edit(lambda: new.write_text("y = 2\n")),
        edit(lambda: new.symlink_to("nowhere")),
    ]
    assert len(set(digests)) == len(digests)
    assert edit(lambda: model.write_text("x = 2\n")) == digests[0]
    assert revision(checkout)["dirty"] == "no"


def test_what_runs_leave_in_results_is_no_edit_of_the_code(checkout: Path) -> None:
    """asv's pages are written each night, and the next night was no longer of a clean commit."""
    (checkout / "results" / "asv").mkdir(parents=True)
    (checkout / "results" / "asv" / "benchmarks.json").write_text("{}")
    assert revision(checkout)["dirty"] == "no"
    commit_all = ("add", "-f", "results"), ("commit", "-q", "-m", "kept")
    for arguments in commit_all:
        git(checkout, *arguments)
    (checkout / "results" / "asv" / "benchmarks.json").write_text("{ }")
    assert revision(checkout)["dirty"] == "no"


def test_a_harness_laid_over_another_commit_says_what_both_are(checkout: Path, tmp_path: Path) -> None:
    root = tmp_path / "laid"
    for folder in ("harness", "engine"):
        (root / folder).mkdir(parents=True)
    (root / "engine" / "model.py").write_text("x = 1\n")
    carry(root, "engine", "c" * 40, checkout)
    clean = {"commit": "c" * 40, "dirty": "no", "dirty_digest": ""}
    assert engine_and_harness(root, "engine") == (clean, revision(checkout))
    (root / "engine" / "model.py").write_text("x = 2\n")
    of_engine, _ = engine_and_harness(root, "engine")
    assert (of_engine["commit"], of_engine["dirty"]) == ("c" * 40, "yes")
    assert of_engine["dirty_digest"]
    assert engine_and_harness(checkout, "engine") == (revision(checkout), revision(checkout))


def test_a_staged_edit_counts_like_one_that_is_not(checkout: Path) -> None:
    (checkout / "model.py").write_text("x = 2\n")
    unstaged = revision(checkout)
    git(checkout, "add", "-A")
    assert revision(checkout) == unstaged


def test_a_subfolder_speaks_for_its_whole_checkout(checkout: Path) -> None:
    (checkout / "below").mkdir()
    (checkout / "model.py").write_text("x = 2\n")
    assert revision(checkout / "below") == revision(checkout)


@pytest.mark.parametrize("with_git", [True, False])
def test_without_git_or_a_checkout_the_sources_themselves_are_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_git: bool
) -> None:
    if not with_git:
        monkeypatch.setenv("PATH", str(tmp_path))
    copy = tmp_path / "copy"
    (copy / "results").mkdir(parents=True)
    (copy / "a.py").write_text("x = 1\n")
    before = revision(copy)
    assert (before["commit"], before["dirty"]) == ("unknown", "unknown")
    (copy / "results" / "run.py").write_text("left behind by a run")
    assert revision(copy) == before
    (copy / "a.py").write_text("x = 2\n")
    assert revision(copy)["dirty_digest"] != before["dirty_digest"]


def test_reading_a_revision_leaves_the_checkout_untouched(checkout: Path) -> None:
    (checkout / "model.py").write_text("x = 2\n")
    index = (checkout / ".git" / "index").read_bytes()
    os.utime(checkout / "model.py")
    revision(checkout)
    assert (checkout / ".git" / "index").read_bytes() == index
    assert git(checkout, "status", "--porcelain") == "M model.py"
