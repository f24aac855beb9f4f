"""A reduction runs over the bucket, so that what lies in pad rows reaches the live ones."""

from typing import Any

from atom_impl.model_ops.norm import RMSNorm
from harness.mutants import Mutant, wrap


def over_the_rows(forward: Any, self: Any, x: Any) -> Any:
    return forward(self, x + 0 * x.sum(dim=0))


def within_a_row(forward: Any, self: Any, x: Any) -> Any:
    return forward(self, x + 0 * x.sum(dim=-1, keepdim=True))


MUTANT = Mutant(
    kind="PADDING",
    variant="reduction over the bucket",
    changes="the norm adds zero times the sum over all rows",
    control_is="zero times the sum within each row.",
    caught_by=("G2",),
    says="Arm, bucket and what was put into the pad rows when the live ones changed.",
    plant=lambda: wrap(RMSNorm, "forward", over_the_rows),
    control=lambda: wrap(RMSNorm, "forward", within_a_row),
    gpu=True,
)
