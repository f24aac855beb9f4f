"""Planted faults: a check that never met the fault it is for is no evidence.

A mutant is one small file that changes the real engine or the real harness in a child process, beside the nearest legal
change. The child runs the public command, and what it recorded says which gate saw the fault.
"""

from __future__ import annotations

from harness.mutants.mutant import Mutant, Where
from harness.mutants.patching import swap, wrap

__all__ = ["Mutant", "Where", "swap", "wrap"]
