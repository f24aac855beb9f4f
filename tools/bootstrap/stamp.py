"""The note in `.venv` that says for what it was made, and whether making it was finished.

Written before anything else with `ready` false, and with `ready` true at the very end: an install that a Ctrl-C or a
full disk cut short is never taken for a finished one, and only an environment with this note is ever made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.bootstrap.torch_build import TorchBuild

NAME = "atom-environment.json"


@dataclass(frozen=True)
class Stamp:
    key: str
    interpreter: str
    ready: bool = False

    def write(self, venv: Path) -> None:
        venv.mkdir(parents=True, exist_ok=True)
        half = venv / f"{NAME}.{os.getpid()}"
        half.write_text(json.dumps(asdict(self), indent=1))
        half.replace(venv / NAME)


def read(venv: Path) -> Stamp | None:
    """The note in `venv`, or None if it has none that can be read."""
    try:
        return Stamp(**json.loads((venv / NAME).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def is_ready(venv: Path, wanted: str) -> bool:
    note = read(venv)
    return note is not None and note.ready and note.key == wanted


def key(files: Iterable[Path], overlaid: TorchBuild | None) -> str:
    """Changes with the named files and their place, this interpreter, and the GPU torch that stays below."""
    digest = hashlib.sha256()
    for part in (sys.version, sys.prefix, repr(overlaid)):
        digest.update(part.encode() + b"\0")
    for file in files:
        digest.update(str(file).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
