"""The rule of G3 and G4: an arm may be about as far from float64 as eager is, as a whole and in every row.

A plain limit fails correct bfloat16 and passes a wrong layer in float32. Eager's own error is the ruler; one stale or
zeroed row hides in the whole tensor, so rows are judged as well, each against the worse of its own eager error and
the 99th percentile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.probes.numerics.figures import TENSORS, RowFigures
from harness.stats import percentile

SMALL_ELEMENTS = 1000  # below this many elements one unlucky rounding weighs more, and the factor is 3


@dataclass(frozen=True)
class Factors:
    """The m of the rule."""

    whole: float
    row: float

    @classmethod
    def of(cls, *, dtype: torch.dtype, rows: int, width: int) -> Factors:
        whole = 3.0 if rows * width < SMALL_ELEMENTS else 2.0
        if dtype == torch.float32:
            return cls(whole, 4.0)
        return cls(whole, 3.0 if width < SMALL_ELEMENTS else 2.0)


@dataclass(frozen=True)
class Finding:
    """One tensor's comparison that came closest to its limit, or went furthest beyond it."""

    tensor: str
    row: int | None  # None: the whole tensor
    error: float
    allowed: float
    ratio: float  # whole-tensor error of the candidate over that of the ruler

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed  # false for NaN

    @property
    def share(self) -> float:
        """How much of the limit is used; NaN counts as infinitely much."""
        return self.error / self.allowed if self.error <= float("inf") else float("inf")

    def __str__(self) -> str:
        place = "the whole tensor" if self.row is None else f"row {self.row}"
        return f"{self.tensor}, {place}: relative L2 error {self.error:.3g}, allowed {self.allowed:.3g}"


def judge(ruler: RowFigures, candidate: RowFigures, dtype: torch.dtype, widths: dict[str, int]) -> list[Finding]:
    """The whole tensor and the worst row of hidden and logits. Raises ValueError when the ruler is not finite."""
    slack = torch.finfo(dtype).eps / 8
    findings = []
    for tensor in TENSORS:
        factors = Factors.of(dtype=dtype, rows=len(ruler), width=widths[tensor])
        ours, theirs = ruler.whole_error(tensor), candidate.whole_error(tensor)
        ratio = theirs / ours if ours else (1.0 if theirs == 0 else float("inf"))
        findings.append(Finding(tensor, None, theirs, factors.whole * ours + slack, ratio))
        rows = ruler.row_errors(tensor)
        floor = percentile(rows.tolist(), 99, f"eager {tensor} row errors")
        allowed = factors.row * rows.clamp(min=floor) + slack
        used = (candidate.row_errors(tensor) / allowed).nan_to_num(nan=float("inf"))
        worst = int(used.argmax())
        findings.append(
            Finding(tensor, worst, float(candidate.row_errors(tensor)[worst]), float(allowed[worst]), ratio)
        )
    return findings
