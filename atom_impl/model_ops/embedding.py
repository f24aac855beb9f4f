"""The token embedding, with room for one row that no token owns.

Pad rows must not reach live rows. To show it, the harness makes their hidden state NaN: `Config.pad_poison_row` adds
an id, equal to the vocabulary's size, whose row is NaN. The LM head never sees that row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class TokenEmbedding(nn.Module):
    """`weight` [vocabulary, hidden], or one row more with `poison_row`. Ids outside it raise, as in torch."""

    def __init__(self, vocab_size: int, hidden_size: int, *, poison_row: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size + poison_row, hidden_size), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"
