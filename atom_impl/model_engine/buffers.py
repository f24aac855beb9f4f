"""The memory that a runner lives on, sized once from its Config: the KV cache and the staging buffers."""

from __future__ import annotations

import torch

from atom_impl.config import Config
from atom_impl.model_engine.staging import StagingBuffers
from atom_impl.model_ops.kv_cache import KVCacheTensor, allocate_kv_cache
from atom_impl.models.model_config import ModelConfig


def shape_of(config: Config) -> tuple[ModelConfig, int]:
    """The model's shape and the longest sequence; ValueError for a Config that names no model."""
    if config.hf_config is None or config.max_model_len is None:
        raise ValueError("Config.hf_config is None: set it to resolve_model(name).config before a runner is built")
    return config.hf_config, config.max_model_len


def make_kv_cache(config: Config, device: torch.device) -> dict[str, KVCacheTensor]:
    """Caches of every registered layer; by default enough blocks for `max_num_seqs` full-length requests."""
    model, max_model_len = shape_of(config)
    full = config.max_num_seqs * -(-max_model_len // config.kv_cache_block_size)
    return allocate_kv_cache(
        config.compilation_config.static_forward_context,
        num_blocks=config.num_kvcache_blocks or full,
        block_size=config.kv_cache_block_size,
        num_kv_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        dtype=config.dtype,
        device=device,
    )


def make_staging(config: Config, device: torch.device, max_q_len: int) -> StagingBuffers:
    model, max_model_len = shape_of(config)
    return StagingBuffers(
        max_rows=max(config.max_num_batched_tokens, config.max_num_seqs * max_q_len),
        max_requests=config.max_num_seqs,
        max_model_len=max_model_len,
        block_size=config.kv_cache_block_size,
        hidden_size=model.hidden_size,
        dtype=config.dtype,
        device=device,
    )
