"""Which graph and which session this thread records.

Another thread's work must go on as if nothing were recorded, so everything that asks "are we capturing?" asks here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom_impl.device.software.asynchronous import Asynchronous
    from atom_impl.device.software.graph import SoftwareGraph


class _ThreadState(threading.local):
    graph: SoftwareGraph | None = None
    in_session: bool = False
    asynchronous: Asynchronous  # of the open session


state = _ThreadState()


def current() -> SoftwareGraph | None:
    """The graph that captures on this thread, if any."""
    return state.graph
