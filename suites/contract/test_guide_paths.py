"""A name that moved broke every script that had followed the guide, while the tests imported it from its new place.

Every name that the guide gives a path is imported from that path, `atom` read as `atom_impl`; its configurations are
made as it writes them; and its signatures are called as it calls them.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
import torch

from atom_impl.compilation.cache_identity import local_cache_dir
from atom_impl.compilation.compiler_manager import CACHE_FILE
from atom_impl.config import CompilationConfig, CompilationLevel, Config, CUDAGraphMode
from atom_impl.utils.cuda_piecewise_backend import PiecewiseBackend
from atom_impl.utils.custom_register import direct_register_custom_op
from atom_impl.utils.region_graph import request_bucket

PATHS: dict[str, tuple[str, ...]] = {
    "config": ("CompilationLevel", "CompilationConfig", "CUDAGraphMode", "Config"),
    "utils.region_graph": ("TokenGraph", "ReqGraph", "eager_region", "token_graph", "graph_pool", "request_bucket"),
    "utils.backends": (
        "VllmBackend",
        "CompilerManager",
        "SplitItem",
        "split_graph",
        "PiecewiseCompileInterpreter",
        "make_compiler",
    ),
    "utils.forward_context": (
        "ForwardContext",
        "Context",
        "AttentionMetaData",
        "DPMetadata",
        "SpecDecodeMetadata",
        "set_forward_context",
        "get_forward_context",
        "reset_forward_context",
    ),
    "utils.compiler_inferface": (
        "CompilerInterface",
        "InductorAdaptor",
        "InductorStandaloneAdaptor",
        "AlwaysHitShapeEnv",
    ),
    "utils.cuda_piecewise_backend": ("PiecewiseBackend", "ConcreteSizeEntry"),
    "utils.decorators": (
        "support_torch_compile",
        "TorchCompileWrapperWithCustomDispatcher",
        "start_monitoring_torch_compile",
    ),
    "utils.custom_register": ("direct_register_custom_op", "aiter_lib"),
    "model_engine.model_runner": ("ModelRunner",),
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PATHS.items() for name in names])
def test_each_name_of_the_guide_is_at_the_guides_path(module: str, name: str) -> None:
    assert getattr(importlib.import_module(f"atom_impl.{module}"), name) is not None


def test_the_adaptors_of_the_guides_path_are_the_ones_that_compile() -> None:
    """A second definition at the old path would be patched, subclassed and tested without any effect."""
    from atom_impl.compilation import inductor_adaptor
    from atom_impl.utils import compiler_inferface

    assert compiler_inferface.InductorAdaptor is inductor_adaptor.InductorAdaptor
    assert compiler_inferface.AlwaysHitShapeEnv is inductor_adaptor.AlwaysHitShapeEnv


def test_the_default_production_setup_sets_what_the_guide_says() -> None:
    config = Config(device="cpu", compilation_config=CompilationConfig(level=3), max_num_seqs=512)
    compilation = config.compilation_config
    assert compilation.splitting_ops == ["aiter.unified_attention_with_output", "aiter.mla_attention"]
    assert compilation.cudagraph_mode is CUDAGraphMode.TR_HYBRID
    assert compilation.cuda_graph_sizes == [512]
    assert config.capture_sizes == [*range(1, 9), *range(16, 513, 16)]


def test_custom_capture_sizes_are_the_ladder() -> None:
    compilation = CompilationConfig(level=3, cudagraph_capture_sizes=[1, 2, 4, 8])
    assert Config(device="cpu", compilation_config=compilation).capture_sizes == [1, 2, 4, 8]


@pytest.mark.parametrize(("rows_each", "drafts"), [(1, 0), (2, 1), (4, 3)])
def test_a_request_bucket_counts_the_draft_tokens_and_not_the_rows(rows_each: int, drafts: int) -> None:
    assert request_bucket(running_bs=8, max_seqlen_q=rows_each) == (8, drafts)


def test_debugging_with_full_eager_execution_needs_either_of_two_settings() -> None:
    for config in (
        Config(device="cpu", enforce_eager=True, compilation_config=CompilationConfig(level=3)),
        Config(device="cpu", compilation_config=CompilationConfig(level=0)),
    ):
        assert config.compilation_config.level == CompilationLevel.NO_COMPILATION
        assert config.compilation_config.cudagraph_mode in (None, CUDAGraphMode.NONE)


def test_the_dispatch_key_is_the_gpus_unless_another_is_given() -> None:
    parameters = inspect.signature(direct_register_custom_op).parameters
    assert list(parameters)[:4] == ["op_name", "op_func", "mutates_args", "fake_impl"]
    assert parameters["dispatch_key"].default == "CUDA"


def test_the_cache_lies_where_the_guide_says_unless_a_directory_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATOM_CACHE_ROOT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    config = Config(device="cpu", dtype=torch.float32, compilation_config=CompilationConfig(level=3))
    found = local_cache_dir(config, [], "compiler", "backbone")
    assert found.parents[2] == Path("~/.cache/atom/torch_compile_cache").expanduser()
    assert CACHE_FILE == "vllm_compile_cache.py"


def test_a_piece_has_the_two_parts_that_the_guide_names() -> None:
    def run(*args: object) -> tuple[object, ...]:
        return args

    piece = PiecewiseBackend(
        torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()),
        [4, 8],
        {},
        piecewise_compile_index=0,
        total_piecewise_compiles=1,
        sym_shape_indices=[0],
        compiled_graph_for_general_shape=run,
        manager=None,  # type: ignore[arg-type]
    )
    assert piece.compiled_graph_for_general_shape is run
    assert sorted(piece.concrete_size_entries) == [4, 8]
    assert all(entry.runtime_shape == size for size, entry in piece.concrete_size_entries.items())
