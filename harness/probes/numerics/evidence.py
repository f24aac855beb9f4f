"""The rows that G3 to G6 judge: one position in eager, compiled and replayed form, each against float64.

Tables joined in another order for one arm made a clean compiler look wrong; here no arm is added without the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.probes.numerics.figures import RowFigures, joined


@dataclass(frozen=True)
class Rows:
    """Aligned tables: row i is one position in every arm."""

    eager: RowFigures
    compiled: RowFigures
    replayed: RowFigures


class Evidence:
    """Collects rows step by step. `labels[i]` says where row i came from."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.widths: dict[str, int] = {}
        self.labels: list[str] = []
        self._parts: list[Rows] = []

    def add(self, label: str, rows: Rows) -> None:
        self._parts.append(rows)
        self.labels += [f"{label} row {i}" for i in range(len(rows.eager))]

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self) -> Rows:
        """All of them. There must be some."""
        return Rows(
            joined([part.eager for part in self._parts]),
            joined([part.compiled for part in self._parts]),
            joined([part.replayed for part in self._parts]),
        )
