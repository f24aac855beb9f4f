"""The two sides of a comparison: a revision's engine in a git worktree, an interpreter, or the checkout as it stands.

Checking out the old revision whole compared two harnesses as well as two engines, and the old one timed without waiting
for the device. Only `atom_impl/` comes from a revision; what measures is always the running checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.revision import revision
from harness.sources import source_digest

ENGINE_PACKAGE = "atom_impl"
AS_IT_STANDS = "."
#: Threads that wait for each other by spinning take a core that somebody needs, such as the side that is timed: on a
#: busy machine of two cores one step took ten seconds. Here they spin for some microseconds and then sleep, unless the
#: caller said otherwise. To sleep at once made a step take 750 us in one process and 1600 in the next.
THREADS = {"GOMP_SPINCOUNT": "20000"}


@dataclass(frozen=True)
class Revisions:
    """What to compare: revisions of this repository or `.`, and the interpreters that run them."""

    baseline: str = AS_IT_STANDS
    candidate: str = AS_IT_STANDS
    baseline_python: str | None = None
    candidate_python: str | None = None


@dataclass(frozen=True)
class Side:
    """`root` holds the engine's package. Equal `code` and `python` mean that both sides run the same engine code."""

    name: str  # "baseline" or "candidate"
    revision: str  # as asked for
    commit: str
    root: Path
    python: str
    code: str  # a digest of the engine's sources
    variables: tuple[tuple[str, str], ...] = ()  # environment that this side alone has
    missing: str = ""  # why the revision has no engine to measure

    def environment(self, checkout: Path) -> dict[str, str]:
        """The caller's environment, with the engine's root before the checkout that measures."""
        roots = [self.root, checkout] if self.root != checkout else [checkout]
        paths = [*map(str, roots), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **THREADS,
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            **dict(self.variables),
        }

    def record(self) -> dict[str, str]:
        """What of a side belongs into a record: no path of this machine."""
        return {
            "revision": self.revision,
            "commit": self.commit,
            "code": self.code,
            "python": "this one" if self.python == sys.executable else Path(self.python).name,
        }

    def __str__(self) -> str:
        asked = "the checkout as it stands" if self.revision == AS_IT_STANDS else self.revision
        return f"{asked} ({self.commit[:12]})" + ("" if self.python == sys.executable else f" under {self.python}")


def make_side(name: str, asked: str, python: str | None, checkout: Path, folder: Path) -> Side:
    """The side that `asked` names: a revision of `checkout`, or `.`. Worktrees are kept below `folder` and used again.

    Raises `UsageError` for a revision or an interpreter that does not exist.
    """
    interpreter = _interpreter(name, python)
    if asked == AS_IT_STANDS:
        commit = revision(checkout)["commit"]
        return Side(name, asked, commit, checkout, interpreter, source_digest([checkout / ENGINE_PACKAGE]))
    commit = _git(checkout, "rev-parse", "--verify", "--end-of-options", f"{asked}^{{commit}}").strip()
    root = folder / commit[:16]
    if not _git(checkout, "ls-tree", commit, ENGINE_PACKAGE).strip():
        return Side(name, asked, commit, root, interpreter, "", missing=f"it has no {ENGINE_PACKAGE}/")
    if not _usable(root, commit):
        _check_out(checkout, commit, root)
    return Side(name, asked, commit, root, interpreter, source_digest([root / ENGINE_PACKAGE]))


def same_code(one: Side, other: Side) -> bool:
    return (one.code, one.python, one.variables) == (other.code, other.python, other.variables)


def what_changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Names of the artefacts (graphs, generated code, recordings) that are not the same on both sides."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def _interpreter(name: str, python: str | None) -> str:
    found = shutil.which(python or sys.executable)
    if found is None:
        raise UsageError(f"--{name}-python {python}: there is no such program; give the path of a Python interpreter")
    return found


def _usable(root: Path, commit: str) -> bool:
    """Whether an earlier comparison left this very revision here, untouched."""
    try:
        if _git(root, "rev-parse", "HEAD").strip() != commit:
            return False
        return not _git(root, "status", "--porcelain", "--ignored=no", "--", ENGINE_PACKAGE).strip()
    except UsageError:
        return False


def _check_out(checkout: Path, commit: str, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    # Forced, because the worktree of a folder that somebody deleted is still registered.
    _git(checkout, "worktree", "add", "--force", "--detach", "--no-checkout", str(root.absolute()), commit)
    _git(root, "checkout", commit, "--", ENGINE_PACKAGE)


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git {arguments[0]} in {folder.name}: {error}; comparing revisions needs git") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise UsageError(f"git {' '.join(arguments)}: {said[-1] if said else 'failed'}")
    return done.stdout
