"""Lay the engines of several commits out, each under the running harness, for a machine that has no git.

A GPU machine that is lent by the minute gets a copy of one tree, so a history of it was one point a loan.

    python -m tools.commits build/commits v1.0 HEAD~3 HEAD
    cd build/commits/1a2b3c4d && python -m harness run --profile suites/performance/decode.toml

Each run then says which commit's engine it measured, and `harness backfill` places it there.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tools.asv_engine import CHECKOUT, ENGINE, overlay, unsupported


def lay_out(folder: Path, name: str) -> tuple[Path, str]:
    """`folder`/<commit>, and why the running harness cannot drive its engine ("" if it can). Raises ValueError."""
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").decode().strip()
    root = folder / commit[:8]
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    if not _git("ls-tree", commit, ENGINE):
        return root, f"it has no {ENGINE}/"
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit, ENGINE))) as archive:
        archive.extractall(root, filter="data")
    overlay(root, CHECKOUT, commit)
    return root, unsupported(root)


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    for name in arguments[1:]:
        try:
            root, reason = lay_out(Path(arguments[0]), name)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        if reason:
            shutil.rmtree(root)
        print(f"{name}: unsupported: {reason}" if reason else f"{name}: {root}")
    return 0


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, timeout=120)
    if done.returncode:
        raise ValueError(f"git {arguments[0]}: {done.stderr.decode().strip() or 'no such commit'}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
