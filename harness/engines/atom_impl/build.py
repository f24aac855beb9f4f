"""A cell's configuration, weights and models, which sessions of one process share and load once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from atom_impl.config import CompilationConfig, CompilationLevel, Config, CUDAGraphMode
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_loader import load_model, resolve_model
from harness.cells import Cell
from harness.engines.base import SessionSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass
class Build:
    """Weights and models of one (model, level, dtype), shared by the sessions of one process."""

    model: Any
    config: Config  # that the model was built with
    eager_model: Any
    eager_config: Config
    weights: Mapping[str, torch.Tensor]
    compiles: dict[str, int] = field(default_factory=dict)


def config_of(cell: Cell, spec: SessionSpec, *, eager: bool = False) -> Config:
    source = resolve_model(cell["model"])
    ladder = list(cell["ladder"]) if cell["ladder"] is not None else None
    return Config(
        model=cell["model"],
        hf_config=source.config,
        dtype=DTYPES[spec.dtype],
        device=spec.device,
        max_num_seqs=spec.max_num_seqs,
        max_model_len=spec.max_model_len,
        max_num_batched_tokens=max(spec.max_model_len, spec.max_num_seqs, *spec.prefill_sizes),
        kv_cache_block_size=spec.block_size,
        num_kvcache_blocks=spec.num_blocks,
        prefill_capture_sizes=list(spec.prefill_sizes),
        eager_above_ladder=spec.eager_above_ladder,
        pad_poison_row=True,
        op_backend=cell["op_backend"],
        compilation_config=CompilationConfig(
            level=0 if eager else cell["level"],
            cudagraph_mode=CUDAGraphMode.NONE if eager else CUDAGraphMode.from_name(cell["mode"]),
            cudagraph_capture_sizes=ladder,
        ),
    )


def build_of(cell: Cell, spec: SessionSpec, config: Config) -> Build:
    weights = resolve_model(cell["model"]).weights(config.dtype, torch.device(spec.device))
    eager_config = config_of(cell, spec, eager=True)
    eager_model = load_model(eager_config, weights)
    if cell["level"] == CompilationLevel.NO_COMPILATION:
        return Build(eager_model, eager_config, eager_model, eager_config, weights)
    return Build(load_model(config, weights), config, eager_model, eager_config, weights)


def reference_runner(source: Config, weights: Mapping[str, torch.Tensor]) -> ModelRunner:
    """The eager model in float64, from the weights as rounded to the lane's dtype."""
    config = Config(
        model=source.model,
        hf_config=source.hf_config,
        dtype=torch.float64,
        device=source.device,
        max_num_seqs=source.max_num_seqs,
        max_model_len=source.max_model_len,
        max_num_batched_tokens=source.max_num_batched_tokens,
        kv_cache_block_size=source.kv_cache_block_size,
        num_kvcache_blocks=source.num_kvcache_blocks,
        pad_poison_row=source.pad_poison_row,
    )
    return ModelRunner(config, load_model(config, {name: tensor.double() for name, tensor in weights.items()}))
