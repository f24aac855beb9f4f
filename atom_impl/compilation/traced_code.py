"""The source files that a trace went through; a change in any of them makes its artefacts stale.

Upstream collected them by replacing a method of Dynamo for the length of a compile. Dynamo keeps the list itself.
"""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any

import torch
import torch.fx

_FRAME_FILE = re.compile(r'^\s*File "([^"]+)"', re.MULTILINE)


def traced_files(graph: torch.fx.GraphModule, forward: Any) -> set[str]:
    """File names of `forward` and of everything inlined into it. Call it within the backend of a `torch.compile`."""
    files = {forward.__code__.co_filename} if isinstance(forward, FunctionType) else set()
    get_traced_code = getattr(torch._guards.TracingContext, "get_traced_code", None)
    codes = None if get_traced_code is None else get_traced_code()
    if codes is not None:
        return files | {code.co_filename for code in codes}
    for node in graph.graph.nodes:
        files.update(_FRAME_FILE.findall(node.stack_trace or ""))
    return files
