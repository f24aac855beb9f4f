"""Level 1: the runner, not the decorator, puts Dynamo in front of the model.

Compiling the outermost module hides the recording units from the graphs: every step was then eager with all buckets
recorded. So each unit's own forward is compiled, behind its token graph, and only once however many runners serve the
model.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import cast

from torch import nn

from atom_impl.compilation.guard_free import function_with_code
from atom_impl.compilation.whole_graph_backend import compile_as_is
from atom_impl.utils.region_graph import units_of

_MARK = "_forward_as_written"


def compile_units(model: nn.Module) -> None:
    """Replace the forward of each recording unit of `model` (of `model` itself, where it has none) by its level-1 form.

    A graph break raises Dynamo's `Unsupported` at the first call and names the line.
    """
    for unit in units_of(model) or [model]:
        if _MARK not in unit.__dict__:
            unit.__dict__[_MARK] = unit.forward
            unit.forward = compile_as_is(_private(unit))  # type: ignore[method-assign]


def _private(unit: nn.Module) -> MethodType:
    """The unit's forward with a code object of its own: Dynamo counts recompiles, up to its limit, by code object."""
    written = cast(FunctionType, type(unit).forward)
    code = written.__code__.replace(co_name=f"{written.__code__.co_name}_{id(unit):x}")
    return MethodType(function_with_code(written, code), unit)
