"""Seeded random models: real shapes without a download.

Weights drawn parameter after parameter from one generator change with the order of the modules, and a normal
distribution changes with the CPU's vector unit. Here every tensor has a generator of its own, seeded by its name, and
values are uniform: their bits come from integer arithmetic alone, so a name means the same model on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qsl

import torch

from atom_impl.model_loader.parameters import POISON_ROW, Part, assemble, poison_row
from atom_impl.model_loader.source import ModelSource
from atom_impl.models.model_config import ModelConfig

PREFIX = "random:"

_TINY = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=256,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=False,
    max_position_embeddings=2048,
)
_LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA_1B = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    tie_word_embeddings=True,
    max_position_embeddings=131072,
    rope_scaling=_LLAMA_3_ROPE,
)
_SMOLLM2_135M = replace(
    _TINY,
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    rope_theta=100000.0,
    tie_word_embeddings=True,
    max_position_embeddings=8192,
)
PRESETS: dict[str, ModelConfig] = {
    "tiny-llama": _TINY,
    # Heads wider than hidden / heads, and normalised: what Qwen3 adds.
    "tiny-qwen3": replace(
        _TINY, architecture="Qwen3ForCausalLM", head_dim=32, rms_norm_eps=1e-6, qk_norm=True, tie_word_embeddings=True
    ),
    "smollm2-135m": _SMOLLM2_135M,
    "llama-1b": _LLAMA_1B,
    "llama-1b-4l": replace(_LLAMA_1B, num_hidden_layers=4),
}


def random_model(name: str) -> ModelSource:
    """`random:<preset>` with `?layers=`, `&seed=` and `&vocab=`: the same tensors for the same name, everywhere.

    A small vocabulary keeps a large model's width and spares its judges most of their work: they compare all logits.

    An unknown preset or option, or a value that is no integer in range, raises ValueError and says what there is.
    """
    preset, _, query = name.removeprefix(PREFIX).partition("?")
    if preset not in PRESETS:
        raise ValueError(f"model {name!r}: no preset {preset!r}; there are {', '.join(PRESETS)}")
    options = _options(name, query)
    layers, seed = options.get("layers", PRESETS[preset].num_hidden_layers), options.get("seed", 0)
    if layers < 1:
        raise ValueError(f"model {name!r}: layers={layers}; a model has at least 1")
    vocab = options.get("vocab", PRESETS[preset].vocab_size)
    if vocab < 1:
        raise ValueError(f"model {name!r}: vocab={vocab}; a vocabulary has at least 1 token")
    cfg = replace(PRESETS[preset], num_hidden_layers=layers, vocab_size=vocab)
    identity = f"{PREFIX}{preset}?layers={layers}&seed={seed}" + (f"&vocab={vocab}" if "vocab" in options else "")
    return ModelSource(name, cfg, identity, lambda dtype, device: random_weights(cfg, seed, dtype, device))


def random_weights(
    cfg: ModelConfig, seed: int, dtype: torch.dtype, device: torch.device | str
) -> dict[str, torch.Tensor]:
    """The model's parameters, drawn in float32 on the CPU and then rounded to `dtype`."""
    return assemble(cfg, partial(_stack, cfg, seed), dtype, torch.device(device))


def _stack(cfg: ModelConfig, seed: int, group: Sequence[Part]) -> torch.Tensor:
    return torch.cat([_draw(cfg, seed, part) for part in group]) if len(group) > 1 else _draw(cfg, seed, group[0])


def _draw(cfg: ModelConfig, seed: int, part: Part) -> torch.Tensor:
    """Norm weights lie in 0.9 to 1.1; a matrix keeps the scale of what it multiplies (variance 1 / fan-in)."""
    if part.name == POISON_ROW:
        return poison_row(cfg.hidden_size, torch.float32)
    digest = hashlib.sha256(f"{seed}:{part.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    values = torch.rand(part.shape, generator=generator).mul_(2.0).sub_(1.0)
    if len(part.shape) == 1:
        return values.mul_(0.1).add_(1.0)
    return values.mul_(math.sqrt(3.0 / part.shape[-1]))


def _options(name: str, query: str) -> dict[str, int]:
    options: dict[str, int] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in ("layers", "seed", "vocab"):
            raise ValueError(f"model {name!r}: no option {key!r}; there are layers, seed and vocab")
        if not value.isdecimal():
            raise ValueError(f"model {name!r}: {key}={value!r} is not a whole number of 0 or more")
        options[key] = int(value)
    return options
