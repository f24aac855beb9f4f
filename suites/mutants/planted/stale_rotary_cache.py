"""Rotation angles cached by row count: the recording reads the positions of its warm-up for ever."""

from typing import Any

from atom_impl.model_ops.rotary import RotaryEmbedding
from atom_impl.utils.region_graph import current_session
from harness.mutants import Mutant, wrap

cache: dict[int, Any] = {}


def cached(forward: Any, self: Any, positions: Any) -> Any:
    if current_session() is None:
        cache.setdefault(len(positions), forward(self, positions))
        return forward(self, positions)
    return cache[len(positions)]


def computed(forward: Any, self: Any, positions: Any) -> Any:
    cache[len(positions)] = forward(self, positions)
    return cache[len(positions)]


MUTANT = Mutant(
    kind="STALE",
    variant="angles cached by row count",
    changes="while recording, cosine and sine come from a cache that the warm-up filled",
    control_is="the same cache is written on every call and never read.",
    caught_by=("G1", "G1.first", "audit.operations"),
    says="Bucket and step; the auditor names the missing cosine and sine with their line.",
    plant=lambda: wrap(RotaryEmbedding, "forward", cached),
    control=lambda: wrap(RotaryEmbedding, "forward", computed),
    gpu=True,
)
