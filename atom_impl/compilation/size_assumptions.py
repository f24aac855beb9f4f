"""What a trace assumed about sizes, and which of it must be checked once Dynamo's guards are gone.

A branch on `rows == 1` decides what is computed; a stride that torch works out for two rows and more only decides how.
Dropping both gave wrong rows at batch 1, and checking both refused batch 1 to a model that was right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
import torch.fx

from atom_impl.compilation.torch_compat import size_guards

#: Where Dynamo evaluates a condition of the traced Python. Other assumptions about 0 and 1 come from inside operations,
#: which ask in order to lay a result out, and what they answer for two rows is right for one and for none.
_PYTHON_BRANCH = "_dynamo/variables/"

#: Sizes that tell an assumption about 0 and 1 from any other.
_SAMPLES = (2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 31, 64, 100, 128, 251, 256, 509, 1000, 1024, 4096, 8191, 8192, 65536)

Assumption = tuple[sympy.Expr, str]


def about_results(guards: Iterable[Any], graph: torch.fx.GraphModule) -> list[Assumption]:
    """What the result depends on of Dynamo's own `guards`, and what `graph` takes for granted without one.

    Each comes with the place where it was made.
    """
    found = [(guard.expr, _place(guard)) for guard in guards]
    kept = [(expr, site) for expr, site in found if not holds_from_two(expr) or _PYTHON_BRANCH in site]
    return kept + _squeezed(graph)


def _place(guard: Any) -> str:
    """The line that made the guard. torch cuts long paths in the middle of a name; the last two parts are whole."""
    return re.sub(r"# \S*?([^/\s]+/[^/\s]+\.py:\d+)", r"# \1", str(guard.sloc))


def _squeezed(graph: torch.fx.GraphModule) -> list[Assumption]:
    """`squeeze` of a dimension whose size is a symbol keeps it for any size, where eager code drops a size of 1."""
    found: list[Assumption] = []
    for node in graph.graph.nodes:
        if getattr(node.target, "__name__", str(node.target)) not in ("squeeze", "squeeze_") or not node.args:
            continue
        fake = node.args[0].meta.get("example_value")
        if not isinstance(fake, torch.Tensor):
            continue
        for dim in _dims(node, fake.dim()):
            expr = getattr(getattr(fake.shape[dim], "node", None), "expr", None)
            if expr is not None and expr.free_symbols:
                lines = (node.stack_trace or "").strip().splitlines()
                found.append((sympy.Ne(expr, 1), " ".join(line.strip() for line in lines[-2:])))
    return found


def _dims(node: torch.fx.Node, rank: int) -> list[int]:
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if given is None:
        return list(range(rank))
    return [dim % rank for dim in ([given] if isinstance(given, int) else given)]


def by_compiler(before: Sequence[Any]) -> list[Assumption]:
    """What the compiler has assumed since `before` was all, other than that sizes are at least 2.

    The graph was fixed by then: what 0 or 1 rows compute was decided, and guarded, when Dynamo traced it.
    """
    return [(guard.expr, _place(guard)) for guard in size_guards()[len(before) :] if not holds_from_two(guard.expr)]


def holds_from_two(expr: sympy.Expr) -> bool:
    """Whether an assumption about one size holds for every size but 0 and 1, as far as samples show."""
    if len(expr.free_symbols) != 1:
        return False
    (symbol,) = expr.free_symbols
    return all(expr.subs(symbol, size) == sympy.true for size in _SAMPLES)
