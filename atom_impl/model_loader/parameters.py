"""Which checkpoint tensors make up which parameter of the model.

The model multiplies by merged matrices (q, k and v are one, gate and up are one); a checkpoint names them one by one.
One table says what belongs together, so that a loader can neither forget a part nor merge in another order than the
model splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from atom_impl.models.model_config import ModelConfig

#: The embedding row that no token owns (see `model_ops.embedding`). Checkpoints have none; then it is made.
POISON_ROW = "model.pad_poison_row"
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Part:
    """One tensor of a checkpoint, by its Hugging Face name."""

    name: str
    shape: tuple[int, ...]


def layout(cfg: ModelConfig) -> dict[str, tuple[Part, ...]]:
    """Every parameter of the model, and the parts whose rows it stacks. A tied LM head is no parameter of its own."""
    hidden, d = cfg.hidden_size, cfg.head_dim
    parameters: dict[str, tuple[Part, ...]] = {}
    parameters[EMBEDDING] = (Part(EMBEDDING, (cfg.vocab_size, hidden)), Part(POISON_ROW, (1, hidden)))

    def add(name: str, *parts: tuple[str, tuple[int, ...]]) -> None:
        parent = name.rpartition(".")[0]
        parameters[f"{name}.weight"] = tuple(Part(f"{parent}.{part}.weight", shape) for part, shape in parts)

    q, kv, ffn = cfg.num_attention_heads * d, cfg.num_key_value_heads * d, cfg.intermediate_size
    for index in range(cfg.num_hidden_layers):
        layer = f"model.layers.{index}"
        add(f"{layer}.input_layernorm", ("input_layernorm", (hidden,)))
        heads = [("q_proj", (q, hidden)), ("k_proj", (kv, hidden)), ("v_proj", (kv, hidden))]
        add(f"{layer}.self_attn.qkv_proj", *heads)
        if cfg.qk_norm:
            add(f"{layer}.self_attn.q_norm", ("q_norm", (d,)))
            add(f"{layer}.self_attn.k_norm", ("k_norm", (d,)))
        add(f"{layer}.self_attn.o_proj", ("o_proj", (hidden, q)))
        add(f"{layer}.post_attention_layernorm", ("post_attention_layernorm", (hidden,)))
        add(f"{layer}.mlp.gate_up_proj", ("gate_proj", (ffn, hidden)), ("up_proj", (ffn, hidden)))
        add(f"{layer}.mlp.down_proj", ("down_proj", (hidden, ffn)))
    add("model.norm", ("norm", (hidden,)))
    if not cfg.tie_word_embeddings:
        parameters[LM_HEAD] = (Part(LM_HEAD, (cfg.vocab_size, hidden)),)
    return parameters


def parts(cfg: ModelConfig) -> Iterator[Part]:
    """All parts, those of one parameter next to each other."""
    for group in layout(cfg).values():
        yield from group


def assemble(
    cfg: ModelConfig,
    stack: Callable[[Sequence[Part]], torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """The model's parameters, where `stack` gives the rows of some parts as one tensor."""
    return {name: stack(group).to(device=device, dtype=dtype) for name, group in layout(cfg).items()}


def poison_row(hidden_size: int, dtype: torch.dtype) -> torch.Tensor:
    """[1, hidden size] of NaN."""
    return torch.full((1, hidden_size), float("nan"), dtype=dtype)


def upcast(weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The same weights, rounding and all, in a wider dtype: what a reference model is built from."""
    return {name: tensor.to(dtype) for name, tensor in weights.items()}
