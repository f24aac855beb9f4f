"""Read a GGUF file as the checkpoint that it was made from.

llama.cpp stores q and k with their rotary pairs interleaved. Read as they lie they give fluent nonsense, and nothing
in the file says so; the permutation is undone here. Values are dequantised to float32, the width in which they are
defined.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from atom_impl.model_loader.parameters import EMBEDDING, LM_HEAD, POISON_ROW
from atom_impl.model_loader.source import WeightsError
from atom_impl.models.model_config import ModelConfig

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOP_LEVEL = {EMBEDDING: "token_embd.weight", "model.norm.weight": "output_norm.weight", LM_HEAD: "output.weight"}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GgufCheckpoint:
    """`config` and float32 tensors by their Hugging Face names. Raises WeightsError for a file that cannot be one."""

    def __init__(self, path: Path) -> None:
        gguf = _gguf_package(path)
        try:
            reader = gguf.GGUFReader(str(path))
        except Exception as error:  # the package raises ValueError, IndexError, OSError, whatever the cut hits
            raise WeightsError(f"{path} is no whole GGUF file: {error}; copy it again") from error
        self.path = path
        self.fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._dequantize = gguf.dequantize
        self.config = self._read_config()

    def tensor(self, name: str) -> np.ndarray:
        """One tensor, dequantised to float32 and in the checkpoint's order of rows."""
        if name == POISON_ROW:
            return np.full((1, self.config.hidden_size), np.nan, dtype=np.float32)
        stored = self._tensors.get(gguf_name(name))
        if stored is None:
            raise WeightsError(f"{self.path} has no tensor {gguf_name(name)} (for {name}); it is another model's file")
        values = self._dequantize(stored.data, stored.tensor_type).astype(np.float32, copy=False)
        cfg = self.config
        heads = {"q_proj": cfg.num_attention_heads, "k_proj": cfg.num_key_value_heads}.get(name.split(".")[-2])
        return undo_rotary_permutation(values, heads) if heads and cfg.architecture == "LlamaForCausalLM" else values

    def _read_config(self) -> ModelConfig:
        kind = self._field("general.architecture")
        if kind not in _ARCHITECTURES:
            raise WeightsError(f"{self.path} holds a {kind!r} model; only {', '.join(_ARCHITECTURES)} can be read")
        if "rope_freqs.weight" in self._tensors or f"{kind}.rope.scaling.type" in self.fields:
            raise WeightsError(
                f"{self.path} scales its rotary angles, which is not read from GGUF; use the safetensors folder"
            )
        hidden, heads = self._field(f"{kind}.embedding_length"), self._field(f"{kind}.attention.head_count")
        return ModelConfig(
            architecture=_ARCHITECTURES[kind],
            vocab_size=len(self._field("tokenizer.ggml.tokens")),
            hidden_size=hidden,
            intermediate_size=self._field(f"{kind}.feed_forward_length"),
            num_hidden_layers=self._field(f"{kind}.block_count"),
            num_attention_heads=heads,
            num_key_value_heads=self._field(f"{kind}.attention.head_count_kv"),
            head_dim=self.fields.get(f"{kind}.attention.key_length", hidden // heads),
            rms_norm_eps=_shortest(self._field(f"{kind}.attention.layer_norm_rms_epsilon")),
            rope_theta=_shortest(self._field(f"{kind}.rope.freq_base")),
            tie_word_embeddings="output.weight" not in self._tensors,
            max_position_embeddings=self._field(f"{kind}.context_length"),
            qk_norm=kind == "qwen3",
            bos_token_id=self.fields.get("tokenizer.ggml.bos_token_id"),
            eos_token_id=self.fields.get("tokenizer.ggml.eos_token_id"),
        )

    def _field(self, name: str) -> Any:
        if name not in self.fields:
            raise WeightsError(f"{self.path} has no field {name}; it is not a complete model file")
        return self.fields[name]


def gguf_name(name: str) -> str:
    """The GGUF name of a checkpoint tensor; ValueError for a name outside this family."""
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if match is None or match[2] not in _IN_LAYER:
        raise ValueError(f"{name!r} is no tensor of a Llama-family checkpoint")
    return f"blk.{match[1]}.{_IN_LAYER[match[2]]}.weight"


def undo_rotary_permutation(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads * (half, 2)] as llama.cpp stores them to rows [heads * (2, half)] as rotate-half reads them."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _shortest(value: float) -> float:
    """The decimal number behind a float32 field: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _gguf_package(path: Path) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise WeightsError(
            f"{path} needs the package gguf to be converted: pip install gguf, or point ATOM_WEIGHTS_DIR at a folder "
            "that holds the converted weights"
        ) from error
    return gguf
