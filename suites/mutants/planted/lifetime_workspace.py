"""A workspace that is replaced for the next bucket while an earlier recording still writes to it."""

from typing import Any

import torch

from atom_impl.model_ops.attention import Attention
from atom_impl.utils.region_graph import current_session
from harness.mutants import Mutant, swap

spaces: dict[tuple[str, torch.dtype], torch.Tensor] = {}


def forward(self: Any, q: Any, k: Any, v: Any, rows: int) -> Any:
    key = self.layer_name, q.dtype
    space = spaces.get(key)
    if space is None or (rows != len(space) and current_session() is None):
        space = spaces[key] = q.new_empty(rows, *q.shape[1:])
    output = space[: len(q)]
    torch.ops.aiter.unified_attention_with_output(q, k, v, output, self.layer_name)
    return output


MUTANT = Mutant(
    kind="LIFETIME",
    variant="workspace replaced",
    changes="attention's output lies in a workspace of the latest size only",
    control_is="one workspace of the largest size, kept.",
    caught_by=("crashed in replay", "crashed in capture"),
    says="The outside tensor that was freed, its shape, the operation that uses it and its line.",
    plant=lambda: swap(Attention, "forward", lambda self, q, k, v: forward(self, q, k, v, len(q))),
    control=lambda: swap(Attention, "forward", lambda self, q, k, v: forward(self, q, k, v, 64)),
    quick=True,
    cpu_only="a GPU does not tell that a graph writes memory which somebody else has freed",
)
