"""A device copy with a hole in it, now and then."""

import ctypes
from itertools import count
from typing import Any

from atom_impl.device.software.script import Script
from harness.mutants import Mutant, wrap

launches = count()


def with_a_hole(run: Any, self: Any) -> None:
    run(self)
    if next(launches) % 5 == 4:
        ctypes.memset(self.launches[-1].args[0].data_ptr(), 0, 64)  # no operator: nobody is told


def filled_again(run: Any, self: Any) -> None:
    with_a_hole(run, self)
    run(self)


MUTANT = Mutant(
    kind="AMDRT",
    variant="hole in a copy",
    changes="one launch in five leaves 16 elements of its last copy unwritten",
    control_is="the graph is launched once more each time.",
    caught_by=("G1", "G1.first"),
    says="Bucket, step and row, and that the same inputs in the same order were right and wrong: AMDRT, or state.",
    plant=lambda: wrap(Script, "run", with_a_hole),
    control=lambda: wrap(Script, "run", filled_again),
    simulated=True,
    cpu_only="it changes the software graph's own launch loop",
)
