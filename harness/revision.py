"""Which code ran: the commit, whether the tree differed from it, and a digest that tells two such trees apart.

"Measured on commit X" was not true: the tree held an edit that was never committed. A dirty tree is named by content.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

from harness.host import UNKNOWN
from harness.sources import source_digest

SOURCE_SUFFIXES = (".py", ".cpp", ".h", ".toml", ".j2", ".txt")
#: What runs write is no code: a night that had published its pages was no longer "of a clean commit".
OUTPUTS = "results"
#: Beside a harness that was laid over another commit's engine: what both are, for no git can tell.
CARRIED = "carried.json"


def carry(root: Path, engine: str, commit: str, harness: Path) -> None:
    """Note below `root` that its `engine` folder is the one of `commit`, and its harness a copy of `harness`'s."""
    facts = {"engine": {"commit": commit, "sources": source_digest([root / engine])}, "harness": revision(harness)}
    (root / "harness" / CARRIED).write_text(json.dumps(facts, indent=1))


def engine_and_harness(checkout: Path, engine: str) -> tuple[dict[str, str], dict[str, str]]:
    """Revisions of the engine and of the harness below `checkout`: two, where one was laid over the other's commit."""
    try:
        carried = json.loads((checkout / "harness" / CARRIED).read_text())
    except OSError:
        whole = revision(checkout)
        return whole, whole
    found, noted = source_digest([checkout / engine]), carried["engine"]
    edited = found != noted["sources"]
    of_engine = {"commit": noted["commit"], "dirty": "yes" if edited else "no", "dirty_digest": found if edited else ""}
    return of_engine, carried["harness"]


def revision(path: Path | str) -> dict[str, str]:
    """`commit`, `dirty` ("yes" or "no") and `dirty_digest` (empty when clean) of the git checkout that holds `path`.

    Ignored files do not count, nor does `results/`; untracked ones do. Without git or a commit the first two are
    "unknown", and the digest is of the source files below `path`, so that two copies of different code still differ.
    """
    top = _git(Path(path), "rev-parse", "--show-toplevel")
    commit = _git(Path(path), "rev-parse", "--verify", "HEAD")
    if top is None or commit is None:
        return {"commit": UNKNOWN, "dirty": UNKNOWN, "dirty_digest": _digest(Path(path), b"", _sources(Path(path)))}
    root = Path(top.decode().strip())
    counted = ["--", ".", f":(exclude){OUTPUTS}"]
    changes = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", *counted)
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z", *counted)
    if changes is None or untracked is None:
        return {"commit": commit.decode().strip(), "dirty": UNKNOWN, "dirty_digest": _digest(root, b"", _sources(root))}
    names = sorted(name for name in untracked.split(b"\0") if name)
    digest = _digest(root, changes, names) if changes or names else ""
    return {"commit": commit.decode().strip(), "dirty": "yes" if digest else "no", "dirty_digest": digest}


def _digest(root: Path, changes: bytes, untracked: list[bytes]) -> str:
    digest = hashlib.sha256(changes)
    for name in untracked:
        digest.update(b"\0" + name + b"\0")
        try:
            digest.update((root / os.fsdecode(name)).read_bytes())
        except OSError:  # a broken link, or a file that went away in between: its name still counts
            digest.update(b"unreadable")
    return digest.hexdigest()[:16]


def _sources(root: Path) -> list[bytes]:
    """Source files below `root`, relative to it. Hidden folders, caches and results hold what running leaves behind."""
    names = []
    for folder, below, files in os.walk(root):
        below[:] = sorted(
            name for name in below if not name.startswith((".", "__")) and name not in ("results", "build")
        )
        names += [os.path.relpath(os.path.join(folder, name), root) for name in files if name.endswith(SOURCE_SUFFIXES)]
    return sorted(os.fsencode(name) for name in names)


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Output of a read-only git command. It takes no lock: a sign-off must not disturb a commit that is being made."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
