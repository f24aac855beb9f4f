"""The recordings' pool stays open after the capture: plain steps take their temporaries from it."""

from typing import Any

from atom_impl.device import get_device
from atom_impl.models.llama import LlamaMLP
from atom_impl.utils.region_graph import current_session, graph_pool
from harness.mutants import Mutant, wrap

own: list[Any] = []


def from_the_pool(forward: Any, self: Any, x: Any, pool: Any) -> Any:
    if current_session() is not None:
        return forward(self, x)
    with get_device().allocating(pool()):
        return forward(self, x)


def own_pool() -> Any:
    if not own:
        own.append(get_device().new_pool())
    return own[0]


MUTANT = Mutant(
    kind="LIFETIME",
    variant="plain step allocates in the pool",
    changes="the feed-forward block of a step without a graph takes its temporaries from the recordings' pool",
    control_is="temporaries from a pool of their own.",
    caught_by=("audit.pool", "G1", "G1.first"),
    says="Bucket and arm, the blocks and bytes taken from the pool outside a capture, and the first line: LIFETIME.",
    plant=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: from_the_pool(forward, self, x, graph_pool)),
    control=lambda: wrap(LlamaMLP, "forward", lambda forward, self, x: from_the_pool(forward, self, x, own_pool)),
    gpu=True,
)
