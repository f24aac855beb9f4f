"""A side stream that never comes back: the graph ends while its work is still on the way."""

from typing import Any

from atom_impl.device import get_device
from atom_impl.models.llama import LlamaMLP
from harness.mutants import Mutant, wrap


def aside(forward: Any, self: Any, x: Any, join: bool) -> Any:
    stream = get_device(x.device.type).side_stream("aside")
    stream.fork()
    with stream:
        doubled = x * 2
    if join:
        stream.join()
    del doubled
    return forward(self, x)


MUTANT = Mutant(
    kind="CAPTURE",
    variant="side stream not joined",
    changes="the feed-forward block forks a stream and does not wait for it",
    control_is="the same fork, joined.",
    caught_by=("crashed in capture",),
    says="The stream, the line that forked it, and where join() belongs.",
    plant=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: aside(forward, self, x, False)),
    control=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: aside(forward, self, x, True)),
    gpu=True,
)
