"""`.item()` in the forward: a graph cannot record that the host reads what the device has not computed."""

from itertools import count
from typing import Any

from atom_impl.model_ops.norm import RMSNorm
from harness.mutants import Mutant, wrap

calls = count()


def reads(forward: Any, self: Any, x: Any) -> Any:
    x.abs().amax().item()
    return forward(self, x)


def reads_in_warm_up(forward: Any, self: Any, x: Any) -> Any:
    return reads(forward, self, x) if next(calls) < 5 else forward(self, x)


MUTANT = Mutant(
    kind="CAPTURE",
    variant="item() in the forward",
    changes="the norm reads its largest input on the host",
    control_is="the same read in the first warm-up.",
    caught_by=("crashed in capture",),
    says="The operation, its file and line, and the ways out.",
    plant=lambda: wrap(RMSNorm, "forward", reads),
    control=lambda: wrap(RMSNorm, "forward", reads_in_warm_up),
    quick=True,
    gpu=True,
)
