"""One arm's rows against the float64 reference, reduced to a few numbers a row.

Full-vocabulary logits of hundreds of positions in three arms would not fit a laptop; all that the gates need of them
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from harness.probes.numerics.arms import ArmRun

TENSORS = ("hidden", "logits")


@dataclass(frozen=True)
class RowFigures:
    """Float64 on the CPU, one entry a row. Errors and norms are Euclidean, `kl` is in nats, `margin` the top-2 gap."""

    hidden_error: torch.Tensor
    hidden_norm: torch.Tensor
    logits_error: torch.Tensor
    logits_norm: torch.Tensor
    class_change: torch.Tensor  # bool: NaN or infinity where the reference has none, or the other way round
    kl: torch.Tensor
    argmax: torch.Tensor  # int64
    margin: torch.Tensor
    noise: torch.Tensor  # rms of (arm - reference) over the vocabulary, mean removed

    def __len__(self) -> int:
        return len(self.kl)

    def row_errors(self, tensor: str) -> torch.Tensor:
        """Relative L2 error of each row; a row whose reference is zero has 0 if it is met exactly, else infinity."""
        error, norm = getattr(self, f"{tensor}_error"), getattr(self, f"{tensor}_norm")
        return torch.where((norm == 0) & (error == 0), torch.zeros_like(error), error / norm)

    def whole_error(self, tensor: str) -> float:
        """Relative L2 error over all rows at once."""
        error, norm = getattr(self, f"{tensor}_error"), getattr(self, f"{tensor}_norm")
        total = float(norm.square().sum().sqrt())
        wrong = float(error.square().sum().sqrt())
        return 0.0 if total == wrong == 0 else wrong / total if total else float("inf")


def row_figures(run: ArmRun, reference: ArmRun, rows: Sequence[int]) -> RowFigures:
    """Row i of `run` is row `rows[i]` of `reference`."""
    index = torch.as_tensor(list(rows), device=reference.hidden.device)
    hidden, hidden_ref = run.hidden.double(), reference.hidden.double()[index]
    logits, logits_ref = run.logits.double(), reference.logits.double()[index]
    top = logits.topk(2, dim=1).values if logits.shape[1] > 1 else logits.expand(-1, 2)
    noise = logits - logits_ref
    values = RowFigures(
        hidden_error=(hidden - hidden_ref).norm(dim=1),
        hidden_norm=hidden_ref.norm(dim=1),
        logits_error=noise.norm(dim=1),
        logits_norm=logits_ref.norm(dim=1),
        class_change=_class_change(hidden, hidden_ref) | _class_change(logits, logits_ref),
        kl=_kl(logits_ref, logits),
        argmax=logits.argmax(dim=1),
        margin=top[:, 0] - top[:, 1],
        noise=(noise - noise.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt(),
    )
    return RowFigures(*(getattr(values, field.name).cpu() for field in fields(RowFigures)))


def joined(parts: Sequence[RowFigures]) -> RowFigures:
    """Several steps' rows as one table. There must be at least one part."""
    return RowFigures(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(RowFigures)))


def _kl(reference: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL(reference, arm) of each row over the full vocabulary."""
    expected, found = reference.log_softmax(dim=1), logits.log_softmax(dim=1)
    return (expected.exp() * (expected - found)).sum(dim=1)


def _class_change(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    changed = (
        (left.isnan() != right.isnan()) | (left.isposinf() != right.isposinf()) | (left.isneginf() != right.isneginf())
    )
    return changed.any(dim=1)
