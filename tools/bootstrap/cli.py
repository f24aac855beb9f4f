"""The command line of the set-up: make `.venv`, or check the interpreter at hand."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.bootstrap import stamp
from tools.bootstrap.errors import EnvironmentUnfit, say
from tools.bootstrap.prepare import PYPROJECT, ROOT, prepare
from tools.bootstrap.requirements import EXTRAS, declared, unmet

INCOMPLETE, UNFIT = 3, 4


def check_current(use: str) -> None:
    """Raise unless the interpreter at hand already has what `use` needs."""
    missing = unmet(declared(PYPROJECT, use))
    if missing:
        lines = "\n".join(f"  {need}  (found: {version or 'none'})" for need, version in missing)
        raise EnvironmentUnfit(
            f"ENV=current installs nothing, and {sys.executable} lacks\n{lines}\n"
            "Install these yourself (torch as your GPU needs it), or let .venv have them: make without ENV=current"
        )


def _leave(venv: Path) -> None:
    """With `.venv` activated, python3 is its own: go on in the interpreter that it was made from.

    Without a note nobody knows which one that was, and to guess the base interpreter would lose the GPU's torch.
    """
    if Path(sys.prefix).resolve() != venv.resolve():
        return
    note = stamp.read(venv)
    if note is None or not Path(note.interpreter).is_file():
        raise EnvironmentUnfit(f"{sys.executable} belongs to {venv}; deactivate it, or name another: make PYTHON=...")
    os.execv(note.interpreter, [note.interpreter, "-m", "tools.bootstrap", *sys.argv[1:]])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tools.bootstrap", description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--device", default=None, help="'cpu' accepts a CPU torch on a machine that shows a GPU")
    parser.add_argument("--current", action="store_true", help="install nothing; check the interpreter at hand")
    parser.add_argument("--need", choices=sorted(EXTRAS), default="all", help="what --current checks for")
    options = parser.parse_args(arguments)
    try:
        if options.current:
            check_current(options.need)
        else:
            _leave(options.venv.absolute())
            prepare(options.venv.absolute(), options.device)
    except EnvironmentUnfit as error:
        say(str(error))
        return UNFIT
    except KeyboardInterrupt:
        say("interrupted; nothing is marked ready, run it again")
        return INCOMPLETE
    return 0
