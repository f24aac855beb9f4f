"""Which nodes of a graph are split operations.

Upstream took a list of names and never read it: only marked functions split, and the default names matched no
operator. Here a node splits when it is marked or named, in any spelling that people use, and a name that matches
nothing is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx

from atom_impl.utils.custom_register import SPLIT_MARK

logger = logging.getLogger(__name__)

#: The guide's defaults. Few models have both, so one that is absent is only worth a warning when nothing splits at all.
DEFAULT_SPLITTING_OPS = ("aiter.unified_attention_with_output", "aiter.mla_attention")


def normalise_op_name(name: str) -> str:
    """`torch.ops.aiter.x`, `aiter::x`, `aiter.x` and `aiter.x.default` as `aiter::x`; another overload keeps its
    name.
    """
    text = name.strip().removeprefix("torch.ops.").replace("::", ".")
    return text.removesuffix(".default").replace(".", "::", 1)


def op_names(target: Any) -> frozenset[str]:
    """The normalised names under which a call target may be listed. Empty for a method or a module."""
    if isinstance(target, torch._ops.OpOverload):
        names = {str(target), str(target.overloadpacket)}
    elif isinstance(target, torch._ops.OpOverloadPacket):
        names = {str(target)}
    elif callable(target):
        module, name = getattr(target, "__module__", "") or "", getattr(target, "__name__", "")
        names = {name, f"{module}.{name}"} if name else set()
    else:
        names = set()
    return frozenset(map(normalise_op_name, names))


def is_marked(target: Any) -> bool:
    """Whether `mark_spliting_op` marked the operator, its overload packet, or the function."""
    if getattr(target, SPLIT_MARK, False):
        return True
    return isinstance(target, torch._ops.OpOverload) and bool(getattr(target.overloadpacket, SPLIT_MARK, False))


def splitting_nodes(graph: torch.fx.Graph, ops: Iterable[str]) -> set[torch.fx.Node]:
    """The nodes that split `graph`: marked targets, and targets that `ops` names.

    Warns of a name that matches nothing.
    """
    wanted = {normalise_op_name(name): name for name in ops}
    found: set[torch.fx.Node] = set()
    matched: set[str] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        names = op_names(node.target) & wanted.keys()
        matched |= names
        if names or is_marked(node.target):
            found.add(node)
    silent = set(map(normalise_op_name, DEFAULT_SPLITTING_OPS)) if found else set()
    missing = [given for name, given in wanted.items() if name not in matched | silent]
    if missing:
        logger.warning("splitting_ops names that match nothing in this graph: %s", ", ".join(missing))
    return found
