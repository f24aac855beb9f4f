"""`enforce_eager=True` that compiles, `use_cudagraph=False` that captures, a typo that is swallowed: each ran for weeks
as something else than its settings said. What a setting means is pinned here.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import pytest
import torch

from atom_impl.config import (
    CompilationConfig,
    Config,
    CUDAGraphMode,
    get_current_atom_config,
    set_current_atom_config,
    use_custom_atom_config,
)
from suites.contract.small_model import small_model

MODES = list(CUDAGraphMode)


def config(compilation: dict[str, Any] | None = None, **settings: Any) -> Config:
    return Config(**{"device": "cpu", "compilation_config": compilation or {}, **settings})


@pytest.fixture(scope="session")
def api(engine: str) -> ModuleType:
    return importlib.import_module(f"{engine}.config")


# What the guide's tables say ------------------------------------------------------------------------------------------


def test_compilation_config_has_the_guides_fields_and_defaults(api: ModuleType) -> None:
    documented: dict[str, Any] = {
        "level": 0,
        "use_cudagraph": True,
        "cudagraph_capture_sizes": None,
        "cuda_graph_sizes": [512],
        "cudagraph_mode": None,
        "splitting_ops": None,
        "cudagraph_copy_inputs": False,
        "use_inductor": True,
        "compile_sizes": None,
        "inductor_compile_config": {},
        "debug_dump_path": "",
        "cache_dir": "",
    }
    made = api.CompilationConfig()
    assert {name: getattr(made, name) for name in documented} == documented


def test_fields_come_in_the_order_that_positional_callers_rely_on() -> None:
    assert [entry.name for entry in fields(CompilationConfig)] == [
        "level",
        "use_cudagraph",
        "local_cache_dir",
        "cudagraph_capture_sizes",
        "cuda_graph_sizes",
        "debug_dump_path",
        "traced_files",
        "cache_dir",
        "use_inductor",
        "cudagraph_mode",
        "compilation_time",
        "splitting_ops",
        "cudagraph_copy_inputs",
        "inductor_compile_config",
        "compile_sizes",
        "static_forward_context",
        "generated_kernels",
    ]
    internal = {entry.name for entry in fields(CompilationConfig) if not entry.init}
    assert internal == {
        "local_cache_dir",
        "traced_files",
        "compilation_time",
        "static_forward_context",
        "generated_kernels",
    }


def test_config_defaults_are_a_level_0_engine_without_graphs() -> None:
    made = Config(device="cpu")
    assert (made.max_num_seqs, made.max_num_batched_tokens, made.kv_cache_block_size) == (512, 16384, 16)
    assert (made.enforce_eager, made.dtype, made.op_backend) == (False, torch.bfloat16, "torch")
    assert made.compilation_config.level == 0
    assert made.compilation_config.cudagraph_mode is CUDAGraphMode.NONE


def test_the_device_is_the_gpu_where_torch_sees_one() -> None:
    assert Config().device == ("cuda" if torch.cuda.is_available() else "cpu")


# Level 3's four steps -------------------------------------------------------------------------------------------------


def test_level_3_takes_its_four_steps_in_the_guides_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def watch(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def watched(self: Any, *args: Any) -> None:
            compilation = getattr(self, "compilation_config", self)
            original(self, *args)
            seen.append(f"{name} {compilation.cudagraph_mode and compilation.cudagraph_mode.name}")

        monkeypatch.setattr(owner, name, watched)

    watch(CompilationConfig, "set_splitting_ops_for_v1")
    watch(Config, "_set_cudagraph_sizes")
    watch(CompilationConfig, "init_with_cudagraph_sizes")
    made = config({"level": 3, "compile_sizes": ["cudagraph_capture_sizes"]}, max_num_seqs=2)
    assert seen == [
        "set_splitting_ops_for_v1 None",
        "_set_cudagraph_sizes None",
        "init_with_cudagraph_sizes TR_HYBRID",
    ]
    assert made.compilation_config.splitting_ops == ["aiter.unified_attention_with_output", "aiter.mla_attention"]
    assert made.compilation_config.compile_sizes == made.capture_sizes == [1, 2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_mode_that_was_chosen_is_kept_at_every_level(level: int, mode: CUDAGraphMode) -> None:
    assert config({"level": level, "cudagraph_mode": mode}).compilation_config.cudagraph_mode is mode
    assert config({"level": level, "cudagraph_mode": mode.name}).compilation_config.cudagraph_mode is mode


@pytest.mark.parametrize(("level", "mode"), [(0, "NONE"), (1, "NONE"), (2, "NONE"), (3, "TR_HYBRID")])
def test_a_mode_that_was_not_chosen_is_tr_hybrid_at_level_3_and_none_below(level: int, mode: str) -> None:
    made = config({"level": level})
    assert made.compilation_config.cudagraph_mode is CUDAGraphMode[mode]
    assert made.requested_mode is CUDAGraphMode[mode]


@pytest.mark.parametrize("listed", [[], ["my.op"]])
def test_split_ops_that_the_user_listed_are_kept(listed: list[str]) -> None:
    made = config({"level": 3, "splitting_ops": listed}).compilation_config
    assert made.splitting_ops == listed
    assert made.splitting_ops is not listed


@pytest.mark.parametrize("level", [0, 1, 2])
def test_only_level_3_splits(level: int) -> None:
    assert config({"level": level}).compilation_config.splitting_ops is None
    with pytest.raises(ValueError, match=r"only be called when level is CompilationLevel\.PIECEWISE"):
        CompilationConfig(level=level).set_splitting_ops_for_v1()


def test_two_configs_do_not_share_the_default_split_ops() -> None:
    first, second = config({"level": 3}).compilation_config, config({"level": 3}).compilation_config
    assert first.splitting_ops is not None
    first.splitting_ops.append("my.op")
    assert second.splitting_ops == ["aiter.unified_attention_with_output", "aiter.mla_attention"]


# What takes effect ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_enforce_eager_switches_off_compilation_and_graphs_and_remembers_what_was_asked(
    level: int, mode: CUDAGraphMode | None
) -> None:
    asked = {"level": level, "cudagraph_mode": mode}
    made = config(asked, enforce_eager=True)
    assert (made.compilation_config.level, made.compilation_config.cudagraph_mode) == (0, CUDAGraphMode.NONE)
    assert made.compilation_config.splitting_ops is None
    assert made.capture_sizes == config(asked).capture_sizes
    assert (made.requested_level, made.requested_mode) == (level, config(asked).compilation_config.cudagraph_mode)


@pytest.mark.parametrize("mode", [None, *MODES])
def test_use_cudagraph_false_switches_off_graphs_and_leaves_compilation_alone(mode: CUDAGraphMode | None) -> None:
    made = config({"level": 3, "use_cudagraph": False, "cudagraph_mode": mode})
    assert made.compilation_config.level == 3
    assert made.compilation_config.cudagraph_mode is CUDAGraphMode.NONE
    assert made.requested_mode is (mode or CUDAGraphMode.TR_HYBRID)


def test_one_engines_enforce_eager_does_not_reach_another_made_from_the_same_object() -> None:
    shared = CompilationConfig(level=3)
    eager = Config(device="cpu", compilation_config=shared, enforce_eager=True)
    compiled = Config(device="cpu", compilation_config=shared)
    assert (eager.compilation_config.level, compiled.compilation_config.level) == (0, 3)
    eager.compilation_config.static_forward_context["layer"] = "eager's"
    assert compiled.compilation_config.static_forward_context == {}
    assert (shared.level, shared.cudagraph_mode, shared.splitting_ops) == (3, None, None)


# compile_sizes --------------------------------------------------------------------------------------------------------


def test_compile_sizes_expand_into_the_final_ladder_in_place_and_each_once() -> None:
    made = config({"level": 3, "compile_sizes": [7, "cudagraph_capture_sizes", 2, 40]}, max_num_seqs=3)
    assert made.capture_sizes == [1, 2, 3]
    assert made.compilation_config.compile_sizes == [7, 1, 2, 3, 40]


def test_no_compile_sizes_are_an_empty_list() -> None:
    assert config({"level": 3}).compilation_config.compile_sizes == []


def test_without_a_config_the_explicit_ladder_is_used_and_a_missing_one_is_an_error() -> None:
    explicit = CompilationConfig(cudagraph_capture_sizes=[4, 1], compile_sizes=["cudagraph_capture_sizes"])
    explicit.init_with_cudagraph_sizes()
    assert explicit.compile_sizes == [4, 1]
    with pytest.raises(ValueError, match="no ladder is known yet"):
        CompilationConfig(compile_sizes=["cudagraph_capture_sizes"]).init_with_cudagraph_sizes()


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        (["capture_sizes"], "expect 'cudagraph_capture_sizes', got 'capture_sizes'"),
        ("cudagraph_capture_sizes", "must be a list"),
        ([0], "at least 1"),
        ([True], "must be an integer"),
        ([1.5], "must be an integer"),
    ],
)
def test_a_wrong_compile_size_is_refused(sizes: Any, rule: str) -> None:
    with pytest.raises(ValueError, match="compile_sizes") as caught:
        CompilationConfig(compile_sizes=sizes)
    assert rule in str(caught.value)


def test_a_compile_size_that_no_step_reaches_is_refused_because_its_piece_would_never_be_saved() -> None:
    with pytest.raises(ValueError, match=r"compile_sizes entry 65: .*max_num_batched_tokens is 64"):
        config({"level": 3, "compile_sizes": [65]}, max_num_batched_tokens=64)


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [-1, 4, 3.0, True, "3", None])
def test_a_level_outside_0_to_3_is_refused(level: Any) -> None:
    with pytest.raises(ValueError, match="level must be in 0-3"):
        CompilationConfig(level=level)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cudagraph_mode": "PIECEWISE"}, "choose one of NONE, TR_HYBRID, FULL, FULL_DECODE_ONLY, FULL_AND_TR_HYBRID"),
        ({"cudagraph_mode": 2}, "cudagraph_mode 2: must be a CUDAGraphMode or the name of one"),
        ({"use_cudagraph": "false"}, "use_cudagraph 'false': must be True or False"),
        ({"use_inductor": 1}, "use_inductor 1: must be True or False"),
        ({"splitting_ops": "aiter.x"}, "splitting_ops='aiter.x': must be a list of names"),
        ({"splitting_ops": [3]}, "must be a list of names"),
        ({"inductor_compile_config": ["max_autotune"]}, "must be a dict of options"),
        ({"cache_dir": None}, "cache_dir None: must be text"),
        ({"levle": 3}, "compilation_config key 'levle': no such setting; did you mean 'level'?"),
        ({"traced_files": set()}, "compilation_config key 'traced_files': no such setting"),
        ({"qqq": 1}, "the settings are level, use_cudagraph"),
    ],
)
def test_a_wrong_compilation_setting_names_the_value_the_rule_and_the_way_out(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        config(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs 0: must be an integer of at least 1"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens -1"),
        ({"kv_cache_block_size": 1.0}, "kv_cache_block_size 1.0"),
        ({"num_kvcache_blocks": 0}, "num_kvcache_blocks 0"),
        ({"max_model_len": 129, "hf_config": small_model()}, "the model has 128 positions"),
        ({"enforce_eager": "no"}, "enforce_eager 'no': must be True or False"),
        ({"dtype": "bfloat16"}, "dtype 'bfloat16': must be a floating-point torch.dtype"),
        ({"dtype": torch.int8}, "dtype torch.int8"),
        ({"device": "tpu"}, "device 'tpu': no such device here"),
        ({"device": "meta"}, "device 'meta': no such device here"),
        ({"op_backend": "cutlass"}, "choose one of torch, triton, aiter"),
        ({"hf_config": {"hidden_size": 1}}, "must be ModelConfig"),
        ({"compilation_config": 3}, "compilation_config 3: must be a CompilationConfig or a dict"),
    ],
)
def test_a_wrong_engine_setting_names_the_value_the_rule_and_the_way_out(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Config(**{"device": "cpu", **settings})


def test_the_models_length_is_the_limit_unless_a_lower_one_is_given() -> None:
    assert config(hf_config=small_model()).max_model_len == 128
    assert config(hf_config=small_model(), max_model_len=32).max_model_len == 32
    assert config().max_model_len is None


# The current config ---------------------------------------------------------------------------------------------------


def test_a_custom_config_is_current_within_its_block_and_the_one_before_is_back_even_after_an_error() -> None:
    outer, inner = Config(device="cpu"), Config(device="cpu")

    def fail_within(made: Config) -> None:
        with use_custom_atom_config(made) as given:
            assert given is get_current_atom_config() is inner
            raise KeyError

    with use_custom_atom_config(outer):
        with pytest.raises(KeyError):
            fail_within(inner)
        assert get_current_atom_config() is outer


def test_reading_the_current_config_when_none_is_set_is_an_error_with_a_way_out() -> None:
    set_current_atom_config(None)
    with pytest.raises(RuntimeError, match="Current atom config is not set; build the model within"):
        get_current_atom_config()


def test_a_config_can_be_set_until_it_is_replaced() -> None:
    made = Config(device="cpu")
    set_current_atom_config(made)
    try:
        assert get_current_atom_config() is made
    finally:
        set_current_atom_config(None)


def test_replacing_a_setting_of_a_compilation_config_starts_with_fresh_tables() -> None:
    first = CompilationConfig(level=3)
    first.static_forward_context["layer"] = "first's"
    assert replace(first, level=2).static_forward_context == {}
