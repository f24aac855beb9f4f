"""How a place in the code is written in a message: short, and the same on every machine.

A path that began in somebody's home made two records of one fault differ, and hid the file's name at its far end.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import FrameType

import torch

#: This checkout (or the folder that the package is installed in), and where torch is installed.
_ROOTS = (Path(__file__).resolve().parents[3], Path(torch.__file__).resolve().parents[1])


@cache
def short_path(filename: str) -> str:
    """Relative to this checkout, to site-packages, or to the working folder; elsewhere the last three parts."""
    path = Path(filename)
    for root in (*_ROOTS, Path.cwd()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(Path(*path.parts[-3:])) if path.is_absolute() else filename


def place_of(frame: FrameType) -> str:
    """`file:line in function` of a frame."""
    code = frame.f_code
    return f"{short_path(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
