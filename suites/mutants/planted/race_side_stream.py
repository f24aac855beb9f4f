"""The main stream overwrites what a side stream still reads: right on a CPU, and on most runs of a GPU."""

from typing import Any

from atom_impl.device import get_device
from atom_impl.models.llama import LlamaMLP
from harness.mutants import Mutant, wrap


def beside(forward: Any, self: Any, x: Any, ordered: bool) -> Any:
    stream, scratch = get_device(x.device.type).side_stream("beside"), x * 1
    stream.fork()
    with stream:
        half = scratch * 0.5
    if ordered:
        stream.join()
    scratch.zero_()
    if not ordered:
        stream.join()
    return forward(self, half * 2)


MUTANT = Mutant(
    kind="RACE",
    variant="overwritten while read",
    changes="a tensor is zeroed before the side stream that reads it is joined",
    control_is="zeroed after the join.",
    caught_by=("crashed in capture",),
    says="Both launches with their lines and streams, and where the wait belongs.",
    plant=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: beside(forward, self, x, False)),
    control=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: beside(forward, self, x, True)),
    cpu_only="a GPU keeps no log of which stream touches what; there the race is won or lost",
)
