"""Where in the user's code something happened.

"An operation failed while capturing" sends people through thirty layers by hand; a file and a line do not.
"""

from __future__ import annotations

import sys
from types import FrameType

from atom_impl.device.software.places import place_of

#: Modules that stand between the user's code and an event: torch, this package, and the debug device beside it.
_INTERNAL = ("torch.", __package__ + ".", __package__.rpartition(".")[0] + ".debug", "contextlib", "importlib.")


def call_site() -> str:
    """`file:line in function` of the innermost frame outside torch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if not (module + ".").startswith(_INTERNAL):
            return place_of(frame)
        frame = frame.f_back
    return "an unknown place"
