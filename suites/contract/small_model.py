"""The smallest model shape that has everything a rule could depend on: grouped heads, tied weights, a length limit."""

from __future__ import annotations

from typing import Any

from atom_impl.models.model_config import ModelConfig


def small_model(**changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "max_position_embeddings": 128,
    }
    return ModelConfig(**{**sizes, **changes})
