"""The line that a step spends its time in and another does not: a gate that only says "slower" sends people to profile.

A second thread looks at this one's stack some thousand times a second. It sees what a tracer would miss: a sleep is
where the time goes, and runs nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

INTERVAL_S = 0.0003
#: A line must hold this much more of one step's time than of the other's to be named.
SHARE = 0.15


def hotter_line(slow: Callable[[], object], plain: Callable[[], object], steps: int = 12) -> str:
    """`file:line in function` that `slow` spends more time in than `plain`, or "" if no line stands out."""
    return stands_out(_lines(slow, steps), _lines(plain, steps))


def stands_out(ours: Counter[str], theirs: Counter[str]) -> str:
    """The line whose share of the looks at `ours` is above its share of those at `theirs` by `SHARE`, or ""."""
    total, base = sum(ours.values()) or 1, sum(theirs.values()) or 1
    surplus = {line: count / total - theirs[line] / base for line, count in ours.items()}
    line, share = max(surplus.items(), key=lambda item: item[1], default=("", 0.0))
    return line if share >= SHARE else ""


def _lines(step: Callable[[], object], steps: int) -> Counter[str]:
    """How often each line was the innermost Python line while `step` ran."""
    watched, seen = threading.get_ident(), Counter[str]()
    running, done = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.is_set():
            frame = sys._current_frames().get(watched)
            if frame is not None and running.is_set():
                seen[_site(frame)] += 1
            del frame  # a held frame keeps the step's tensors
            time.sleep(INTERVAL_S)

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL_S)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    running.set()
    try:
        for _ in range(steps):
            step()
    finally:
        running.clear()
        done.set()
        thread.join()
        sys.setswitchinterval(switch_s)
    return seen


def _site(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
