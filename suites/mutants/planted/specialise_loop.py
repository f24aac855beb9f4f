"""A loop over the rows: the number of rows of the first call is written into the code."""

from typing import Any

from atom_impl.models.llama import LlamaModel
from harness.mutants import Mutant, swap

plain = LlamaModel.forward


def looping(self: Any, input_ids: Any, positions: Any) -> Any:
    hidden = plain(self, input_ids, positions)
    for _ in range(input_ids.shape[0]):
        hidden = hidden + 0.0
    return hidden


def over_layers(self: Any, input_ids: Any, positions: Any) -> Any:
    hidden = plain(self, input_ids, positions)
    for _ in range(len(self.layers)):
        hidden = hidden + 0.0
    return hidden


MUTANT = Mutant(
    kind="SPECIALISE",
    variant="loop over rows",
    changes="the model's forward loops over its rows in Python",
    control_is="a loop over its layers.",
    caught_by=("crashed in capture",),
    says="Which arguments lost their dynamic rows, in the words of the tracer.",
    plant=lambda: swap(LlamaModel, "forward", looping),
    control=lambda: swap(LlamaModel, "forward", over_layers),
    level=3,
)
