"""Weights: the right ones, whole, shared between arms, and a clear word when they cannot be had.

A download cut short and a cache written halfway both load as a model that talks nonsense. And two arms over two
copies of the weights differ by more than the one variable that they are compared for.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_impl.config import Config
from atom_impl.model_loader import ModelSource, load_model, model_names, resolve_model
from atom_impl.model_loader.parameters import parts, upcast
from atom_impl.model_loader.random_weights import PRESETS, random_weights

pytestmark = pytest.mark.usefixtures("private_cache")

TINY = "random:tiny-llama"
QKV = "model.layers.1.self_attn.qkv_proj.weight"


def config_for(source: ModelSource, **settings: Any) -> Config:
    return Config(
        **{"model": source.name, "hf_config": source.config, "dtype": torch.float32, "device": "cpu", **settings}
    )


# --- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "gpt-5", "smollm2", "/no/such/folder"])
def test_an_unknown_model_name_lists_the_choices(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown model .*smollm2-135m-instruct, random:tiny-llama.*path of a folder"):
        resolve_model(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random:huge", "no preset 'huge'; there are tiny-llama"),
        ("random:tiny-llama?depth=4", "no option 'depth'; there are layers, seed and vocab"),
        ("random:tiny-llama?layers=four", "layers='four' is not a whole number"),
        ("random:tiny-llama?seed=-1", "seed='-1' is not a whole number"),
        ("random:tiny-llama?layers=0", "layers=0; a model has at least 1"),
        ("random:tiny-llama?vocab=0", "vocab=0; a vocabulary has at least 1 token"),
    ],
)
def test_a_bad_random_model_name_says_what_there_is(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_model(name)


def test_resolving_any_known_name_needs_no_network_and_no_files(
    monkeypatch: pytest.MonkeyPatch, private_cache: Path
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    identities = {resolve_model(name).identity for name in model_names()}
    assert len(identities) == len(model_names())
    assert not private_cache.exists()


# --- random weights -------------------------------------------------------------------------------------------


def test_a_random_name_means_the_same_tensors_everywhere() -> None:
    """Bits of mersenne twister through integer arithmetic: these sums hold on any machine with any torch."""
    weights = resolve_model(TINY).weights(torch.float32, "cpu")
    sums = {name: int(weights[name].view(torch.int32).sum(dtype=torch.int64)) for name in (QKV, "lm_head.weight")}
    assert sums == {QKV: -390455934332, "lm_head.weight": -827422754140}


def test_a_tensor_depends_on_its_name_and_the_seed_alone() -> None:
    two, four = (resolve_model(f"{TINY}?layers={n}").weights(torch.float32, "cpu") for n in (2, 4))
    assert all(torch.equal(tensor[:-1], four[name][:-1]) for name, tensor in two.items())
    other = resolve_model(f"{TINY}?seed=1").weights(torch.float32, "cpu")
    assert not any(torch.equal(tensor[:-1], two[name][:-1]) for name, tensor in other.items())
    assert len({tuple(t.flatten()[:8].tolist()) for t in four.values()}) == len(four)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_another_dtype_is_the_float32_draw_rounded(dtype: torch.dtype) -> None:
    wide, found = (resolve_model(TINY).weights(kind, "cpu") for kind in (torch.float32, dtype))
    assert all(torch.equal(found[name].nan_to_num(9), tensor.nan_to_num(9).to(dtype)) for name, tensor in wide.items())


def test_random_weights_keep_the_scale_of_what_they_multiply() -> None:
    cfg = replace(PRESETS["tiny-llama"], hidden_size=512, head_dim=128)
    weights = random_weights(cfg, 0, torch.float32, "cpu")
    assert float(weights[QKV].std()) == pytest.approx(512**-0.5, rel=0.02)
    norm = weights["model.norm.weight"]
    assert 0.9 <= float(norm.min()) < float(norm.max()) <= 1.1


def test_every_parameter_of_every_preset_has_its_parts_once() -> None:
    for preset in PRESETS.values():
        names = [part.name for part in parts(preset)]
        assert len(names) == len(set(names))
        assert ("lm_head.weight" in names) is not preset.tie_word_embeddings


# --- a model over weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TINY, "random:tiny-qwen3"])
def test_two_models_from_one_mapping_share_every_storage(name: str) -> None:
    source = resolve_model(name)
    weights = source.weights(torch.float32, "cpu")
    eager = dict(load_model(config_for(source), weights).named_parameters())
    compiled = dict(load_model(config_for(source, compilation_config={"level": 3}), weights).named_parameters())
    assert eager.keys() == compiled.keys()
    storages = {tensor.untyped_storage().data_ptr() for tensor in weights.values()}
    for parameter, tensor in eager.items():
        assert tensor.data_ptr() == compiled[parameter].data_ptr(), parameter
        assert tensor.untyped_storage().data_ptr() in storages, parameter


def test_a_tied_lm_head_is_the_embedding_without_the_poison_row() -> None:
    source = resolve_model("random:tiny-qwen3")
    weights = source.weights(torch.float32, "cpu")
    plain, poisoned = (load_model(config_for(source, pad_poison_row=on), weights) for on in (False, True))
    embedding, head = (plain.get_parameter(name) for name in ("model.embed_tokens.weight", "lm_head.weight"))
    assert embedding.shape == head.shape == (256, 64)
    assert embedding.data_ptr() == head.data_ptr()
    assert poisoned.get_parameter("lm_head.weight").data_ptr() == head.data_ptr()
    assert poisoned.get_parameter("model.embed_tokens.weight")[256].isnan().all()
    assert not head.isnan().any()


def test_upcast_weights_make_a_float64_model_of_the_rounded_values() -> None:
    source = resolve_model(TINY)
    rounded = source.weights(torch.bfloat16, "cpu")
    model = load_model(config_for(source, dtype=torch.bfloat16), upcast(rounded, torch.float64))
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.dtype for tensor in tensors} == {torch.float64}
    assert torch.equal(model.get_parameter(QKV), rounded[QKV].double())


def test_loading_leaves_the_default_dtype_alone_even_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    source = resolve_model(TINY)
    weights = source.weights(torch.bfloat16, "cpu")

    def broken(_: Config) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("atom_impl.model_loader.loader.model_class", lambda _: broken)
    with pytest.raises(MemoryError):
        load_model(config_for(source, dtype=torch.bfloat16), weights)
    assert torch.get_default_dtype() == torch.float32


def drop(weights: dict[str, torch.Tensor]) -> None:
    del weights[QKV]


def add(weights: dict[str, torch.Tensor]) -> None:
    weights["model.layers.2.mlp.down_proj.weight"] = torch.zeros(1)


def cut(weights: dict[str, torch.Tensor]) -> None:
    weights[QKV] = weights[QKV][:-1]


def mix(weights: dict[str, torch.Tensor]) -> None:
    weights[QKV] = weights[QKV].double()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (drop, "qkv_proj.weight is missing from the weights"),
        (add, "layers.2.mlp.down_proj.weight is not a parameter of this model"),
        (cut, r"qkv_proj.weight is \(127, 64\); the model's config asks for \(128, 64\)"),
        (mix, "qkv_proj.weight is torch.float64 on cpu; the model is torch.float32 on cpu"),
    ],
)
def test_weights_that_do_not_fit_are_named(fault: Callable[[dict[str, torch.Tensor]], None], message: str) -> None:
    source = resolve_model(TINY)
    weights = source.weights(torch.float32, "cpu")
    fault(weights)
    with pytest.raises(ValueError, match=message):
        load_model(config_for(source), weights)


def test_a_config_without_a_shape_says_where_to_get_it() -> None:
    with pytest.raises(ValueError, match=r"hf_config is None: set it to resolve_model\(name\)\.config"):
        load_model(Config(model=TINY, device="cpu"))


def test_a_small_vocabulary_leaves_every_other_weight_as_it_is() -> None:
    whole, small = resolve_model(TINY), resolve_model(f"{TINY}?vocab=100")
    assert small.config.vocab_size == 100
    assert small.identity != whole.identity
    one, other = (source.weights(torch.float32, "cpu") for source in (whole, small))
    differ = {name for name in one if not torch.equal(one[name], other[name])}
    assert differ == {name for name in one if "embed" in name or "lm_head" in name}
