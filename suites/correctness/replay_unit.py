"""A recording unit that uses every way a region can hand its result on, small enough to run a thousand times.

The public lifetime faults needed two buckets, an unlucky free block and a held output together. No single test wrote
that sequence down, so a machine draws sequences; this is the model that it draws them on.
"""

from __future__ import annotations

from typing import Any

import torch

from atom_impl.utils.forward_context import get_forward_context
from atom_impl.utils.region_graph import eager_region

MAX_ROWS = 8
WIDTH = 16


class PlannedError(Exception):
    """Raised by the unit where the step's metadata says so."""


class Unit:
    """Rows in, rows out, and a `cache` that every run adds to. A copy with equal `weight` is the plain run's side."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self.cache = torch.zeros(MAX_ROWS, WIDTH, device=weight.device)

    def twin(self) -> Unit:
        return Unit(self.weight.clone())

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """`x` [rows, WIDTH], `table` [WIDTH]: a tensor outside the pool that a recording is the last to hold."""
        hidden = (x @ self.weight).tanh() + table
        attended, _, half = _attend(hidden, table)
        mixed = attended * 3 + attended.mean(0)  # pad rows reach every row, as a statistic over the batch does
        mixed[:, : WIDTH // 2] += half
        shifted = _shift(_shift(mixed)["sum"])["sum"]  # region to region, with nothing between
        self.cache[: x.shape[0]].add_(shifted)
        _fail_here("segment")
        return shifted * _metadata()["shift"]


@eager_region
def _attend(hidden: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor]:
    """A fresh tensor, nothing, and a view of the argument."""
    _fail_here("region")
    return hidden * _metadata()["scale"] + table, None, hidden[:, WIDTH // 2 :]


@eager_region
def _shift(hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"sum": hidden + _metadata()["shift"]}


def _metadata() -> dict[str, Any]:
    metadata = get_forward_context().attn_metadata
    assert isinstance(metadata, dict)
    return metadata


def _fail_here(where: str) -> None:
    if _metadata()["fail"] == where:
        raise PlannedError(where)
