"""A checkpoint's `config.json` to the model's shape and back.

A field that is read over silently is a different model with plausible text: an attention bias that is dropped, a
sliding window that is not slid. What this family does not implement is therefore refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_impl.models import ARCHITECTURES
from atom_impl.models.model_config import ModelConfig

#: Fields that must have one of these values (or be absent), because the model implements nothing else.
_FIXED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "pretraining_tp": (1, None),
    "quantization_config": (None,),
}
_PLAIN = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def from_hf(fields: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig that `config.json` describes; ValueError for what this family does not implement."""
    architecture = next(iter(fields.get("architectures") or ["(none)"]))
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"architecture {architecture!r} has no model here; there are {', '.join(sorted(ARCHITECTURES))}"
        )
    for name, allowed in _FIXED.items():
        if name in fields and fields[name] not in allowed:
            raise ValueError(
                f"config.json says {name}={fields[name]!r}; {architecture} here runs only with {allowed[0]!r}"
            )
    missing = [name for name in (*_PLAIN, "max_position_embeddings", "rms_norm_eps") if name not in fields]
    if missing:
        raise ValueError(f"config.json has no {missing[0]}; a {architecture} checkpoint needs it")
    theta, scaling = _rope(fields)
    return ModelConfig(
        architecture=architecture,
        **{name: fields[name] for name in _PLAIN},
        num_key_value_heads=fields.get("num_key_value_heads") or fields["num_attention_heads"],
        head_dim=fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"],
        rms_norm_eps=fields["rms_norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", False)),
        max_position_embeddings=fields["max_position_embeddings"],
        qk_norm=architecture == "Qwen3ForCausalLM",
        bos_token_id=fields.get("bos_token_id"),
        eos_token_id=_token_ids(fields.get("eos_token_id")),
    )


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    """The `config.json` of a checkpoint of this shape, in the form that every reader understands."""
    model_type = "qwen3" if cfg.qk_norm else "llama"
    fields: dict[str, Any] = {"architectures": [cfg.architecture], "model_type": model_type}
    fields |= {name: getattr(cfg, name) for name in _PLAIN}
    fields |= {
        "num_key_value_heads": cfg.num_key_value_heads,
        "head_dim": cfg.head_dim,
        "rms_norm_eps": cfg.rms_norm_eps,
        "rope_theta": cfg.rope_theta,
        "rope_scaling": cfg.rope_scaling,
        "tie_word_embeddings": cfg.tie_word_embeddings,
        "max_position_embeddings": cfg.max_position_embeddings,
        "bos_token_id": cfg.bos_token_id,
        "eos_token_id": cfg.eos_token_id,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "float32",
    }
    return fields


def _rope(fields: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling: `rope_parameters` in newer files, `rope_theta` and `rope_scaling` in older ones."""
    merged = {**(fields.get("rope_scaling") or {}), **(fields.get("rope_parameters") or {})}
    theta = merged.pop("rope_theta", None) or fields.get("rope_theta") or 10000.0
    if merged.get("rope_type", merged.get("type", "default")) == "default":
        return float(theta), None
    return float(theta), merged


def _token_ids(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
