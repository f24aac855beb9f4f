"""After capture nothing compiles any more.

A recompile in the middle of serving took seconds for one step, was right, and showed in no counter at level 1, where
Dynamo keeps its guards and traces again by itself. Once capture is closed that is an error that names the guard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from atom_impl.compilation.compile_gate import refusing_compiles
from atom_impl.config import CompilationLevel

REASON = "capture is closed, and a step that serves requests waits for no compiler"


@contextmanager
def compiling_nothing(level: int) -> Iterator[None]:
    """Within the block a model of `level` runs only code that exists. Raises RuntimeError where it would compile.

    At level 1 the error is torch's and carries the guards that failed; above it there are no guards, and the error
    names the piece and the size.
    """
    if level == CompilationLevel.NO_COMPILATION:
        yield
    elif level == CompilationLevel.DYNAMO_AS_IS:
        with torch.compiler.set_stance("fail_on_recompile"), refusing_compiles(REASON):
            yield
    else:
        with refusing_compiles(REASON):
            yield


def warm_up_rows(level: int, largest: int, limit: int, compile_sizes: Sequence[int | str] | None) -> list[int]:
    """Row counts to run before capture, so that every later count, up to `limit`, finds its code.

    The first is `largest`, and at least 2. Level 1 traces that one as a constant, the next as a symbol, and a single
    row, which torch keeps apart, by itself. A declared size gets code of its own when it is met for the first time.
    """
    first = max(2, largest)
    if level == CompilationLevel.DYNAMO_AS_IS:
        return [first, 2 if first > 2 else 3, 1] if limit > 2 else [first, 1]
    declared = {size for size in compile_sizes or () if isinstance(size, int) and size <= limit}
    return [first, *sorted(declared, reverse=True)]
