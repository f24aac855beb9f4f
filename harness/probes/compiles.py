"""Compilations of this process, counted by torch itself: an engine's own counter misses what it does not know of.

A guard on a shape recompiled the sampler once a minute in serving. No counter of the engine's moved: the code was a
library's.
"""

from __future__ import annotations

import torch


def compilations() -> dict[str, float]:
    """Graphs that Dynamo captured and graphs that reached AOTAutograd, since the process began."""
    counters = torch._dynamo.utils.counters
    return {
        "compiles seen by Dynamo": float(counters["stats"]["unique_graphs"]),
        "compiles seen by AOTAutograd": float(counters["aot_autograd"]["total"]),
    }
