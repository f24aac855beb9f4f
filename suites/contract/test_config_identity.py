"""A compile cache's identity that forgot the model's sizes let two models load each other's code; one that held a path
or a port never hit. Every setting is judged here: it changes generated code, or it does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from atom_impl.config import CompilationConfig, Config
from suites.contract.small_model import small_model


def config(compilation: dict[str, Any] | None = None, **settings: Any) -> Config:
    return Config(**{"device": "cpu", "compilation_config": compilation or {}, **settings})


def base(**settings: Any) -> Config:
    return config({"level": 3}, **{"hf_config": small_model(), **settings})


CHANGES_CODE: dict[str, Callable[[], Config]] = {
    "level": lambda: config({"level": 2}, hf_config=small_model()),
    "use_inductor": lambda: config({"level": 3, "use_inductor": False}, hf_config=small_model()),
    "splitting_ops": lambda: config({"level": 3, "splitting_ops": ["aiter.x"]}, hf_config=small_model()),
    "compile_sizes": lambda: config({"level": 3, "compile_sizes": [4]}, hf_config=small_model()),
    "inductor option": lambda: config(
        {"level": 3, "inductor_compile_config": {"max_autotune": True}}, hf_config=small_model()
    ),
    "dtype": lambda: base(dtype=torch.float32),
    "device kind": lambda: base(device="cuda"),
    "max_num_batched_tokens": lambda: base(max_num_batched_tokens=8192),
    "max_model_len": lambda: base(max_model_len=64),
    "pad_poison_row": lambda: base(pad_poison_row=True),
    "op_backend": lambda: base(op_backend="triton"),
    "no model": lambda: base(hf_config=None),
    **{
        f"model {name}": (lambda name=name, value=value: base(hf_config=small_model(**{name: value})))  # type: ignore[misc]
        for name, value in {
            "architecture": "Qwen3ForCausalLM",
            "vocab_size": 512,
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 32,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5e5,
            "tie_word_embeddings": False,
            "max_position_embeddings": 256,
            "qk_norm": True,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        }.items()
    },
}

KEEPS_CODE: dict[str, Callable[[], Config]] = {
    "the same again": base,
    "graph mode": lambda: config({"level": 3, "cudagraph_mode": "FULL"}, hf_config=small_model()),
    "graphs off": lambda: config({"level": 3, "use_cudagraph": False}, hf_config=small_model()),
    "input copies": lambda: config({"level": 3, "cudagraph_copy_inputs": True}, hf_config=small_model()),
    "ladder": lambda: config({"level": 3, "cudagraph_capture_sizes": [1, 2]}, hf_config=small_model()),
    "ladder limit": lambda: config({"level": 3, "cuda_graph_sizes": [64]}, hf_config=small_model()),
    "cache folder": lambda: config({"level": 3, "cache_dir": "elsewhere"}, hf_config=small_model()),
    "dump folder": lambda: config({"level": 3, "debug_dump_path": "elsewhere"}, hf_config=small_model()),
    "weights' name": lambda: base(model="elsewhere"),
    "second GPU's policy": lambda: base(eager_above_ladder=True),
    "requests": lambda: base(max_num_seqs=64),
    "prefill buckets": lambda: base(prefill_capture_sizes=[16]),
    "cache blocks": lambda: base(num_kvcache_blocks=64),
    "special tokens": lambda: base(hf_config=small_model(eos_token_id=2, bos_token_id=1)),
}


def test_every_setting_that_changes_generated_code_changes_the_identity_and_no_two_alike() -> None:
    identities = {name: make().compute_hash() for name, make in CHANGES_CODE.items()}
    identities["base"] = base().compute_hash()
    assert len(set(identities.values())) == len(CHANGES_CODE) + 1, identities


@pytest.mark.parametrize("name", KEEPS_CODE)
def test_a_setting_that_changes_no_generated_code_keeps_the_identity(name: str) -> None:
    assert KEEPS_CODE[name]().compute_hash() == base().compute_hash()


def test_every_setting_was_judged_for_the_identity() -> None:
    """A field added later fails here until it is put among those that change code or those that do not."""
    judged_on_compilation = {
        "level", "use_cudagraph", "cudagraph_capture_sizes", "cuda_graph_sizes", "debug_dump_path", "cache_dir",
        "use_inductor", "cudagraph_mode", "splitting_ops", "cudagraph_copy_inputs", "inductor_compile_config",
        "compile_sizes",
    }  # fmt: skip
    judged_on_config = {
        "model", "hf_config", "dtype", "device", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
        "kv_cache_block_size", "num_kvcache_blocks", "enforce_eager", "capture_sizes", "prefill_capture_sizes",
        "eager_above_ladder", "compilation_config", "pad_poison_row", "op_backend",
    }  # fmt: skip
    assert {entry.name for entry in fields(CompilationConfig) if entry.init} == judged_on_compilation
    assert {entry.name for entry in fields(Config) if entry.init} == judged_on_config


def test_what_the_backend_writes_while_it_runs_keeps_the_identity() -> None:
    made = base()
    before = made.compute_hash()
    compilation = made.compilation_config
    compilation.local_cache_dir = "somewhere"
    compilation.compilation_time = 12.5
    compilation.traced_files.add("model.py")
    compilation.generated_kernels["piece 0"] = 3
    compilation.static_forward_context["layer"] = object()
    assert made.compute_hash() == before


def test_the_order_of_options_and_names_is_no_part_of_the_identity() -> None:
    one = CompilationConfig(splitting_ops=["a", "b"], compile_sizes=[1, 2], inductor_compile_config={"x": 1, "y": 2})
    two = CompilationConfig(splitting_ops=["b", "a"], compile_sizes=[2, 1], inductor_compile_config={"y": 2, "x": 1})
    assert one.compute_hash() == two.compute_hash()


def first_pass(graph: object) -> object:
    return graph


def second_pass(graph: object) -> object:
    return [graph]


class VersionedPass:
    def __init__(self, version: str) -> None:
        self.version = version

    def uuid(self) -> str:
        return self.version


def option_hash(value: Any) -> str:
    return CompilationConfig(inductor_compile_config={"option": value}).compute_hash()


def test_options_that_print_alike_or_differ_only_in_type_stay_apart() -> None:
    values = [
        1,
        1.0,
        "1",
        True,
        None,
        "None",
        [1],
        {1: 1},
        first_pass,
        second_pass,
        VersionedPass("1"),
        VersionedPass("2"),
    ]
    assert len({option_hash(value) for value in values}) == len(values)
    assert option_hash(VersionedPass("1")) == option_hash(VersionedPass("1"))


def test_an_option_without_a_stable_spelling_is_refused_instead_of_missing_the_cache_for_ever() -> None:
    with pytest.raises(
        ValueError, match=r"inductor_compile_config.*option.*no spelling that is the same in every process"
    ):
        option_hash(object())
    captured = 3
    with pytest.raises(ValueError, match="closes over values"):
        option_hash(lambda graph: captured)


def test_the_identity_is_the_same_in_another_process() -> None:
    code = (
        "from atom_impl.config import CompilationConfig as C;"
        "print(C(level=3, splitting_ops=list('abcdef'), inductor_compile_config={'a': {'x', 'y', 'z'}}).compute_hash())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    own = CompilationConfig(level=3, splitting_ops=list("abcdef"), inductor_compile_config={"a": {"x", "y", "z"}})
    assert outputs == {own.compute_hash() + "\n"}
