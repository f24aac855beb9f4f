"""The Llama family: Llama 2 and 3, SmolLM2, and Qwen3 with its normalised queries and keys.

The forward holds nothing that changes per step and keeps nothing of one: no branch on the number of rows, no buffer
that it writes, no position that it looks up. Each of these compiles or records into a fixed answer to a moving
question.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from atom_impl.config import Config
from atom_impl.model_ops.attention import Attention
from atom_impl.model_ops.embedding import TokenEmbedding
from atom_impl.model_ops.linear import Linear, MergedLinear
from atom_impl.model_ops.norm import RMSNorm
from atom_impl.model_ops.rotary import RotaryEmbedding, apply_rotary
from atom_impl.models.model_config import ModelConfig
from atom_impl.utils.decorators import support_torch_compile
from atom_impl.utils.region_graph import token_graph


def model_config(config: Config) -> ModelConfig:
    """The architecture's numbers; ValueError when the Config has none."""
    if config.hf_config is None:
        raise ValueError("Config.hf_config is None: set it to resolve_model(name).config before a model is built")
    return config.hf_config


class LlamaAttention(nn.Module):
    """Projections and rotation around the paged attention operator."""

    def __init__(self, atom_config: Config, prefix: str) -> None:
        super().__init__()
        cfg = model_config(atom_config)
        self.head_dim = cfg.head_dim
        q_size, kv_size = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
        self.qkv_proj = MergedLinear(cfg.hidden_size, (q_size, kv_size, kv_size))
        self.o_proj = Linear(q_size, cfg.hidden_size)
        self.q_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps) if cfg.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps) if cfg.qk_norm else nn.Identity()
        self.attn = Attention(
            atom_config,
            num_heads=cfg.num_attention_heads,
            num_kv_heads=cfg.num_key_value_heads,
            head_dim=cfg.head_dim,
            layer_name=f"{prefix}.attn",
        )

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.qkv_proj(x))
        q = apply_rotary(self.q_norm(q), cos, sin)
        k = apply_rotary(self.k_norm(k), cos, sin)
        return self.o_proj(self.attn(q, k, v).flatten(-2))


class LlamaMLP(nn.Module):
    """The gated feed-forward block: down(silu(gate(x)) * up(x))."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.gate_up_proj = MergedLinear(cfg.hidden_size, (cfg.intermediate_size, cfg.intermediate_size))
        self.down_proj = Linear(cfg.intermediate_size, cfg.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x)
        return self.down_proj(F.silu(gate) * up)


class LlamaDecoderLayer(nn.Module):
    def __init__(self, atom_config: Config, prefix: str) -> None:
        super().__init__()
        cfg = model_config(atom_config)
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = LlamaAttention(atom_config, prefix=f"{prefix}.self_attn")
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = LlamaMLP(cfg)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


@token_graph
@support_torch_compile
class LlamaModel(nn.Module):
    """Embedding, layers, final norm: all of a step's per-token work, and so the unit that compiles and records."""

    def __init__(self, atom_config: Config, **kwargs: Any) -> None:
        super().__init__()
        cfg, prefix = model_config(atom_config), kwargs.get("prefix", "model")
        self.embed_tokens = TokenEmbedding(cfg.vocab_size, cfg.hidden_size, poison_row=atom_config.pad_poison_row)
        self.rotary_emb = RotaryEmbedding(cfg.head_dim, cfg.rope_theta, cfg.rope_scaling)
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(atom_config, prefix=f"{prefix}.layers.{i}") for i in range(cfg.num_hidden_layers)
        )
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """`input_ids` and `positions` [rows] integers; returns hidden states [rows, hidden size]."""
        x = self.embed_tokens(input_ids)
        cos, sin = self.rotary_emb(positions)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """The model with its LM head. `lm_head` is the embedding's own storage when the checkpoint ties them."""

    def __init__(self, atom_config: Config) -> None:
        super().__init__()
        cfg = model_config(atom_config)
        self.model = LlamaModel(atom_config, prefix="model")
        self.lm_head = Linear(cfg.hidden_size, cfg.vocab_size)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states [rows, hidden size] of `input_ids` [rows] at `positions` [rows]."""
        return self.model(input_ids, positions)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] of hidden states [rows, hidden size]."""
        return self.lm_head(hidden)
