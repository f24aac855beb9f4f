"""The `harness` command. Every way in which it ends is one message and one of the exit codes of `harness.errors`."""

from __future__ import annotations

from harness.cli import comparing, evidence, measuring, nights, trust
from harness.cli.app import app

__all__ = ["app", "comparing", "evidence", "main", "measuring", "nights", "trust"]


def main() -> None:
    """Entry point of the `harness` command."""
    app(prog_name="harness")
