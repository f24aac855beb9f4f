"""A probe that drives no step and has nothing to complain about."""

from typing import Any

from harness.mutants import Mutant, wrap
from harness.probes.numerics.drive import Driver


def idle(run: Any, self: Any, stream: Any) -> None:
    """Looks at the stream and goes home."""


def busy(run: Any, self: Any, stream: Any) -> None:
    run(self, stream)


MUTANT = Mutant(
    kind="HARNESS",
    variant="nothing was compared",
    changes="the numerics driver runs no step",
    control_is="it runs through one more call.",
    caught_by=("G1", "dispatch.steps"),
    says="The gate, and that it compared nothing, which is no pass.",
    plant=lambda: wrap(Driver, "run", idle),
    control=lambda: wrap(Driver, "run", busy),
)
