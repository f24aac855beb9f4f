"""What a model name stands for: a shape, weights in any dtype on any device, perhaps a tokenizer, and an identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from atom_impl.models.model_config import ModelConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Reads weights as (dtype, device) asks for.
WeightsReader = Callable[[torch.dtype, torch.device], dict[str, torch.Tensor]]


class WeightsError(RuntimeError):
    """Weights are missing, cut short, damaged or others than asked for; names file, finding and way out."""


def _no_tokenizer() -> Tokenizer | None:
    return None


@dataclass(frozen=True)
class ModelSource:
    """A resolved model name. Making one reads no weights; `identity` tells two sets of weights apart."""

    name: str
    config: ModelConfig
    identity: str
    read_weights: WeightsReader = field(repr=False)
    read_tokenizer: Callable[[], Tokenizer | None] = field(repr=False, default=_no_tokenizer)

    def weights(self, dtype: torch.dtype, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Tensors by the model's parameter names (`parameters.layout`). Keep the mapping to share them between models.

        Raises `WeightsError` when they cannot be had whole.
        """
        return self.read_weights(dtype, torch.device(device))

    def tokenizer(self) -> Tokenizer | None:
        """The model's `tokenizers.Tokenizer`; None for weights that were never trained on text."""
        return self.read_tokenizer()
