"""A checkpoint folder as Hugging Face lays it out: config.json, safetensors in one file or shards, tokenizer.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from atom_impl.model_loader.hf_config import from_hf
from atom_impl.model_loader.parameters import POISON_ROW, Part, assemble, parts, poison_row
from atom_impl.model_loader.safetensors_file import SafetensorsFile
from atom_impl.model_loader.source import ModelSource, WeightsError
from atom_impl.models.model_config import ModelConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SAMPLE_BYTES = 1 << 16


def folder_model(path: Path) -> ModelSource:
    """The model in the folder `path`. WeightsError: no readable config.json; ValueError: not run here."""
    cfg = from_hf(_read_json(path / "config.json"))
    return ModelSource(
        name=str(path),
        config=cfg,
        identity=f"folder:{folder_identity(path)}",
        read_weights=lambda dtype, device: folder_weights(path, cfg, dtype, device),
        read_tokenizer=lambda: read_tokenizer(path),
    )


def folder_weights(path: Path, cfg: ModelConfig, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """The model's parameters from the folder's safetensors, mapped where dtype and device allow it."""
    files = _files_by_tensor(path)
    for part in parts(cfg):
        if part.name != POISON_ROW:
            _check_part(path, files, part)
    return assemble(cfg, partial(_stack, files), dtype, device)


def folder_identity(path: Path) -> str:
    """A digest of config and of every shard's size, table of contents and a sample of its data.

    Shards are not read whole: a large checkpoint would take minutes to name.
    """
    digest = hashlib.sha256((path / "config.json").read_bytes())
    for file in _shards(path):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            for offset in sorted({0, size // 3, 2 * size // 3, max(0, size - _SAMPLE_BYTES)}):
                stream.seek(offset)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def read_tokenizer(path: Path) -> Tokenizer | None:
    """The folder's tokenizer; None when it has none."""
    file = path / "tokenizer.json"
    if not file.exists():
        return None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise WeightsError(f"{file} is no tokenizer: {error}; copy it again") from error


def _stack(files: dict[str, SafetensorsFile], group: Sequence[Part]) -> torch.Tensor:
    stored = [part.name for part in group if part.name in files]
    homes = {files[name].path: files[name] for name in stored}
    tensors = [next(iter(homes.values())).stacked(stored)] if len(homes) == 1 else []
    tensors = tensors or [files[name].stacked([name]) for name in stored]
    if len(stored) < len(group):  # only the poison row may be missing; _check_part saw the others
        tensors.append(poison_row(group[0].shape[1], tensors[0].dtype))
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]


def _files_by_tensor(path: Path) -> dict[str, SafetensorsFile]:
    return {name: file for file in map(SafetensorsFile, _shards(path)) for name in file.entries}


def _shards(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
        missing = [name for name in names if not (path / name).is_file()]
        if missing or not names:
            raise WeightsError(f"{index} lists {missing[0] if missing else 'no file'}; copy the checkpoint again")
        return [path / name for name in names]
    single = path / "model.safetensors"
    if not single.is_file():
        raise WeightsError(f"{path} has no model.safetensors and no index of shards; copy the checkpoint again")
    return [single]


def _check_part(path: Path, files: dict[str, SafetensorsFile], part: Part) -> None:
    if part.name not in files:
        raise WeightsError(f"{path} has no tensor {part.name}; its config.json asks for one of {part.shape}")
    found = files[part.name].entries[part.name].shape
    if found != part.shape:
        raise WeightsError(f"{part.name} in {files[part.name].path} is {found}; config.json asks for {part.shape}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist; a checkpoint folder needs it") from error
    except (ValueError, OSError) as error:
        raise WeightsError(f"{path} cannot be read: {error}; copy it again") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds {type(content).__name__}, not an object; copy it again")
    return content
