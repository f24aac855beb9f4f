"""The forward takes another way for a single row: the compiled code has one of the ways for every batch."""

from typing import Any

from atom_impl.models.llama import LlamaModel
from harness.mutants import Mutant, swap

plain = LlamaModel.forward


def branching(self: Any, input_ids: Any, positions: Any) -> Any:
    hidden = plain(self, input_ids, positions)
    return hidden * 1.0 if input_ids.shape[0] == 1 else hidden


def by_setting(self: Any, input_ids: Any, positions: Any) -> Any:
    hidden = plain(self, input_ids, positions)
    return hidden * 1.0 if self.training else hidden


MUTANT = Mutant(
    kind="SPECIALISE",
    variant="branch on one row",
    changes="the model's forward branches on rows == 1",
    control_is="a branch on a setting of the model.",
    caught_by=("crashed in capture",),
    says="The argument and its size, the rule that it breaks, and the line that made the rule.",
    plant=lambda: swap(LlamaModel, "forward", branching),
    control=lambda: swap(LlamaModel, "forward", by_setting),
    level=3,
)
