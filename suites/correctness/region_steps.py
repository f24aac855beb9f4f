"""The live steps and small units that the tests of region graphs record and replay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from atom_impl.config import Config
from atom_impl.device import get_device
from atom_impl.utils.forward_context import Context, ForwardContext, forward_context, get_forward_context
from atom_impl.utils.region_graph import TokenGraph, eager_region
from atom_impl.utils.step_ledger import StepRecord

WIDTH = 16


class Step:
    """A live step: `scale` is host metadata that a region reads, `record` what the ledger saw."""

    def __init__(self, rows: int, dev: torch.device, *, scale: float = 2.0, prefill: bool = False) -> None:
        self.record = StepRecord()
        self.metadata: dict[str, Any] = {"scale": scale, "max_seqlen_q": 1}
        self.context = Context(torch.zeros(rows, device=dev), is_prefill=prefill, batch_size=rows, running_bs=rows)

    def __call__(self, action: Any = None) -> AbstractContextManager[ForwardContext]:
        return forward_context(self.metadata, Config(), self.context, tr_graph=action, record=self.record)


@eager_region
def scaled(x: torch.Tensor) -> torch.Tensor:
    metadata: Any = get_forward_context().attn_metadata
    return x * metadata["scale"]


def run(graph: TokenGraph, function: Callable[..., Any], x: torch.Tensor, step: Step, action: str) -> Any:
    with step(None):
        graph.learn(function(x))
    with step(action):
        if action == "record":
            return graph.record(function, x, phase="decode")
        return graph.replay(x, phase="decode")


def recorded(function: Callable[..., Any], x: torch.Tensor, dev: torch.device) -> TokenGraph:
    graph = TokenGraph("unit", device=get_device(dev.type))
    run(graph, function, x, Step(x.shape[0], dev), "record")
    return graph
