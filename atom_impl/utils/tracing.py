"""Whether this call is being traced: by this thread, and not by another.

`torch.compiler.is_compiling()` is one flag for the whole process. While one thread compiled its model, two others asked
it, took themselves for traced, and served their steps eagerly without a word.
"""

from __future__ import annotations

import torch


def being_traced() -> bool:
    """True inside a trace of Dynamo or `torch.export` by the calling thread. Dynamo itself reads it as True."""
    if torch.compiler.is_dynamo_compiling():
        return True
    return torch.compiler.is_compiling() and torch._guards.TracingContext.try_get() is not None
