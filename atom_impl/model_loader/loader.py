"""Build a model over weights that exist already.

The arms of a comparison must differ by one variable, so an eager and a compiled model are built over the very same
storages: the model is made without memory (on `meta`) and its parameters are then the given tensors, not copies of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from atom_impl.config import Config
from atom_impl.model_loader.parameters import EMBEDDING, LM_HEAD, Part, layout
from atom_impl.model_loader.registry import resolve_model
from atom_impl.models import model_class
from atom_impl.models.model_config import ModelConfig


def load_model(config: Config, weights: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
    """The model of `config.hf_config` in eval mode, over `weights` or those of `config.model` in `config.dtype`.

    Models built from one mapping share its storages. The mapping's dtype is the model's (float64 weights make a
    float64 model). Raises ValueError for a tensor that is missing, unknown, misshapen, or on another device than
    `config.device`.
    """
    cfg = config.hf_config
    if cfg is None:
        raise ValueError("Config.hf_config is None: set it to resolve_model(name).config before a model is built")
    if weights is None:
        weights = resolve_model(config.model).weights(config.dtype, config.device)
    check_weights(cfg, weights, torch.device(config.device))
    with _default_dtype(weights[EMBEDDING].dtype), torch.device("meta"):
        model = model_class(cfg.architecture)(config)
    model.load_state_dict(_state(cfg, weights, config.pad_poison_row), strict=True, assign=True)
    return model.to(config.device).eval().requires_grad_(False)


def check_weights(cfg: ModelConfig, weights: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Raise ValueError, with the tensor's name, unless `weights` are exactly the model's parameters in one dtype."""
    wanted = layout(cfg)
    for name in [*(wanted.keys() - weights.keys()), *(weights.keys() - wanted.keys())]:
        known = "missing from the weights" if name in wanted else "not a parameter of this model"
        raise ValueError(f"{name} is {known} ({cfg.architecture}, {cfg.num_hidden_layers} layers)")
    dtype = weights[EMBEDDING].dtype
    for name, group in wanted.items():
        tensor, shape = weights[name], _stacked_shape(group)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; the model's config asks for {shape}")
        if tensor.dtype != dtype or tensor.device.type != device.type:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}; the model is {dtype} on {device}: convert the mapping"
            )


def _stacked_shape(group: tuple[Part, ...]) -> tuple[int, ...]:
    return (sum(part.shape[0] for part in group), *group[0].shape[1:])


def _state(cfg: ModelConfig, weights: Mapping[str, torch.Tensor], with_poison: bool) -> dict[str, torch.Tensor]:
    """The model's state: the poison row is left out unless asked for, and never part of a tied LM head."""
    vocabulary = weights[EMBEDDING][: cfg.vocab_size]
    state = dict(weights)
    if not with_poison:
        state[EMBEDDING] = vocabulary
    if cfg.tie_word_embeddings:
        state[LM_HEAD] = vocabulary
    return state


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Modules made in this block get `dtype`, as in every loader of the field; restored also when one raises."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
