"""A checkpoint folder: its tensors mapped and merged, its config.json read whole or refused.

A config field that was read over gave a different model with plausible text, and a shard that was cut short loaded as
zeros. Parts merged in another order than the model splits them are the same size and the wrong projection.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_impl.model_loader import ModelSource, WeightsError, converted, resolve_model
from atom_impl.model_loader.folder import folder_weights
from atom_impl.model_loader.hf_config import from_hf, to_hf
from atom_impl.model_loader.parameters import POISON_ROW, layout
from atom_impl.model_loader.random_weights import PRESETS
from atom_impl.model_loader.safetensors_file import SafetensorsFile, write_float32

CPU = torch.device("cpu")
TINY = "random:tiny-llama"


def hf_tensors(source: ModelSource) -> dict[str, torch.Tensor]:
    """A checkpoint of the source under Hugging Face's names, taken apart by the same table that puts it together."""
    weights = source.weights(torch.float32, "cpu")
    tensors: dict[str, torch.Tensor] = {}
    for name, group in layout(source.config).items():
        pieces = weights[name].split([part.shape[0] for part in group])
        tensors |= {part.name: piece.clone() for part, piece in zip(group, pieces, strict=True)}
    del tensors[POISON_ROW]
    return tensors


def write_folder(path: Path, source: ModelSource, tensors: dict[str, torch.Tensor], shards: int = 1) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(to_hf(source.config)))
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in names[number::shards]}, path / file)
        weight_map |= dict.fromkeys(names[number::shards], file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.mark.parametrize("name", [TINY, "random:tiny-qwen3"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_gives_the_weights_that_were_saved(name: str, shards: int, tmp_path: Path) -> None:
    source = resolve_model(name)
    found = resolve_model(str(write_folder(tmp_path / "m", source, hf_tensors(source), shards)))
    assert found.config == source.config
    expected, weights = source.weights(torch.bfloat16, "cpu"), found.weights(torch.bfloat16, "cpu")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key].nan_to_num(9), tensor.nan_to_num(9)) for key, tensor in expected.items())


def test_a_folders_identity_follows_its_values(tmp_path: Path) -> None:
    source = resolve_model(TINY)
    tensors = hf_tensors(source)
    first = resolve_model(str(write_folder(tmp_path / "a", source, tensors))).identity
    assert resolve_model(str(write_folder(tmp_path / "b", source, tensors))).identity == first
    tensors["model.norm.weight"] += 1
    assert resolve_model(str(write_folder(tmp_path / "c", source, tensors))).identity != first


def test_parts_that_are_neighbours_in_the_file_are_merged_without_a_copy(tmp_path: Path) -> None:
    values = {name: np.full((2, 4), n, dtype=np.float32) for n, name in enumerate("abc")}
    write_float32(tmp_path / "m.safetensors", [(name, (2, 4)) for name in values], values.__getitem__)
    file = SafetensorsFile(tmp_path / "m.safetensors")
    whole, tail = file.stacked(["a", "b", "c"]), file.stacked(["b", "c"])
    assert whole.flatten().tolist() == [0.0] * 8 + [1.0] * 8 + [2.0] * 8
    assert tail.data_ptr() == whole.data_ptr() + 32
    assert whole.data_ptr() % 64 == 0
    assert whole.untyped_storage().nbytes() == 96
    assert file.stacked(["b", "a"]).flatten().tolist() == [1.0] * 8 + [0.0] * 8


def test_our_files_are_read_by_the_safetensors_package(tmp_path: Path) -> None:
    values = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(5, dtype=np.float32)}
    path = tmp_path / "m.safetensors"
    crc = write_float32(path, [(name, array.shape) for name, array in values.items()], values.__getitem__)
    assert {name: tensor.tolist() for name, tensor in load_file(path).items()} == {
        k: v.tolist() for k, v in values.items()
    }
    assert crc == converted.crc32_of(path)


def test_a_mapped_file_outlives_its_reader_and_its_directory(tmp_path: Path) -> None:
    values = np.arange(4096, dtype=np.float32)
    write_float32(tmp_path / "m.safetensors", [("a", (4096,))], lambda _: values)
    tensor = SafetensorsFile(tmp_path / "m.safetensors").stacked(["a"])
    (tmp_path / "m.safetensors").unlink()
    assert torch.equal(tensor, torch.from_numpy(values))


@pytest.mark.parametrize("size", [0, 5, 8, 100, -1])
def test_a_safetensors_file_cut_short_is_named(size: int, tmp_path: Path) -> None:
    source = resolve_model(TINY)
    folder = write_folder(tmp_path / "m", source, hf_tensors(source))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:size])
    with pytest.raises(WeightsError, match=r"model\.safetensors .*(no safetensors file|cut short).*copy it again"):
        folder_weights(folder, source.config, torch.float32, CPU)


def test_a_folder_that_lacks_a_tensor_or_a_shard_is_named(tmp_path: Path) -> None:
    source = resolve_model(TINY)
    tensors = hf_tensors(source)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(WeightsError, match=r"no tensor model\.layers\.1\.self_attn\.k_proj\.weight"):
        resolve_model(str(write_folder(tmp_path / "a", source, tensors))).weights(torch.float32, "cpu")
    folder = write_folder(tmp_path / "b", source, hf_tensors(source), shards=2)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"lists model-1\.safetensors"):
        folder_weights(folder, source.config, torch.float32, CPU)


def test_a_tensor_of_another_shape_than_the_config_says_is_named(tmp_path: Path) -> None:
    source = resolve_model(TINY)
    tensors = hf_tensors(source)
    tensors["model.norm.weight"] = torch.ones(65)
    folder = write_folder(tmp_path / "m", source, tensors)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight .* is \(65,\); config\.json asks for \(64,\)"):
        folder_weights(folder, source.config, torch.float32, CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' has no model here"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config="),
        ({"hidden_size": None}, "hidden_size None"),
    ],
)
def test_a_config_that_this_family_does_not_implement_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf({**to_hf(PRESETS["tiny-llama"]), **change})


@pytest.mark.parametrize("preset", PRESETS)
def test_a_shape_survives_being_written_as_config_json(preset: str) -> None:
    assert from_hf(json.loads(json.dumps(to_hf(PRESETS[preset])))) == PRESETS[preset]


def test_the_newer_rope_parameters_are_read_as_well() -> None:
    fields = to_hf(PRESETS["llama-1b"])
    scaling = fields.pop("rope_scaling")
    fields["rope_parameters"] = {**scaling, "rope_theta": fields.pop("rope_theta")}
    assert from_hf(fields) == PRESETS["llama-1b"]
