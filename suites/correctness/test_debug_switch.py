"""Guards against a debug mode that nobody can switch on: the engine, not a test, must take the wrapped device."""

from __future__ import annotations

import os
import subprocess
import sys

PRINT = "from atom_impl.device import get_device; print(type(get_device('cpu')).__name__)"


def device_with(value: str) -> str:
    environment = {**os.environ, "ATOM_DEBUG_REPLAY": value}
    done = subprocess.run([sys.executable, "-c", PRINT], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_variable_wraps_every_device_of_the_process() -> None:
    assert device_with("1") == "DebugDevice"
    assert device_with("0") == "SoftwareDevice"
