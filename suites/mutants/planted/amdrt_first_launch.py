"""A runtime that drops the last node of a graph the first time it is launched."""

from typing import Any

from atom_impl.device.software.script import Script
from atom_impl.device.software.thread_state import state
from harness.mutants import Mutant, wrap


def nothing(*_: Any, **__: Any) -> None:
    """A node that the runtime lost."""


def dropped(run: Any, self: Any, again: bool) -> None:
    calls = self._calls
    if not state.in_session and not hasattr(self, "launched"):
        self.launched = True
        self._calls = [*calls[:-1], (nothing, (), {})]
        run(self)
        self._calls = calls
        if not again:
            return
    run(self)


MUTANT = Mutant(
    kind="AMDRT",
    variant="first launch drops a node",
    changes="the first launch of every recording leaves its last node out",
    control_is="it is launched again at once, whole.",
    caught_by=("G1.first",),
    says="The bucket, and that the first replay alone is wrong: a MOVED address, or a runtime that drops work.",
    plant=lambda: wrap(Script, "run", lambda run, self: dropped(run, self, False)),
    control=lambda: wrap(Script, "run", lambda run, self: dropped(run, self, True)),
    simulated=True,
    quick=True,
    cpu_only="it changes the software graph's own launch loop",
)
