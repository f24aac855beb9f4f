"""The GGUF file as a checkpoint folder, converted once.

A plain GGUF load takes half a minute, in every process of every cell. The converted folder is mapped in well under a
second. It is named after the file that it came from and carries a checksum of each of its files; one that does not
hold is rebuilt.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from pathlib import Path

from atom_impl.model_loader.cache_dir import locked, scratch, weights_dir
from atom_impl.model_loader.fetch import PackagedWeights, gguf_file, offered_dir
from atom_impl.model_loader.gguf_reader import GgufCheckpoint
from atom_impl.model_loader.hf_config import to_hf
from atom_impl.model_loader.parameters import parts
from atom_impl.model_loader.safetensors_file import write_float32
from atom_impl.model_loader.source import WeightsError
from atom_impl.models.model_config import ModelConfig

log = logging.getLogger(__name__)

#: Counts changes of what a converted folder holds; part of its name.
FORMAT = 1
MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 22


def converted_folder(package: PackagedWeights, expected: ModelConfig) -> Path:
    """The verified checkpoint folder of `package`, made on first use. `expected` is the shape that its name promises.

    Looked for in ATOM_WEIGHTS_DIR, then in the cache. Raises WeightsError when it is damaged and cannot be made anew.
    """
    name = folder_name(package)
    offered = offered_dir()
    if offered is not None and (offered / name).is_dir():
        fault = damage(offered / name, package)
        if fault is None:
            return offered / name
        log.warning("%s: %s; the copy in the cache is used instead", offered / name, fault)
    home = weights_dir()
    folder = home / name
    with locked(home, name):
        fault = damage(folder, package) if folder.exists() else None
        if fault is not None:
            log.warning("%s: %s; it is converted again", folder, fault)
        if fault is not None or not folder.exists():
            _convert(package, expected, folder)
    return folder


def folder_name(package: PackagedWeights) -> str:
    return f"{package.file_name.removesuffix('.gguf')}-{package.sha256[:12]}-v{FORMAT}"


def damage(folder: Path, package: PackagedWeights) -> str | None:
    """What is wrong with a converted folder, in words; None when every file is as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["source_sha256"] != package.sha256 or manifest["format"] != FORMAT:
            return "it was converted from another file"
        for name, entry in manifest["files"].items():
            size = (folder / name).stat().st_size
            if size != entry["bytes"]:
                return f"{name} has {size} bytes, expected {entry['bytes']}"
            if crc32_of(folder / name) != entry["crc32"]:
                return f"{name} does not have the checksum it was written with"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it is incomplete ({type(error).__name__}: {error})"
    return None


def crc32_of(path: Path) -> int:
    """CRC-32: against damage, not against malice, and three times as fast as a hash that resists it."""
    crc, buffer = 0, bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(memoryview(buffer)[:count], crc)
    return crc


def _convert(package: PackagedWeights, expected: ModelConfig, folder: Path) -> None:
    source = gguf_file(package)
    log.info("converting %s to float32, once", source.name)
    with scratch(folder.parent) as work:
        made = work / folder.name
        made.mkdir()
        _write(GgufCheckpoint(source), package, expected, made)
        if folder.exists():
            shutil.move(folder, work / "damaged")
        os.replace(made, folder)


def _write(checkpoint: GgufCheckpoint, package: PackagedWeights, expected: ModelConfig, folder: Path) -> None:
    from atom_impl.model_loader.gguf_tokenizer import build_tokenizer

    cfg = checkpoint.config
    if cfg != expected:
        raise WeightsError(f"{checkpoint.path} describes {cfg}, but its name stands for {expected}")
    shapes = [(part.name, part.shape) for part in parts(cfg)]
    crcs = {"model.safetensors": write_float32(folder / "model.safetensors", shapes, checkpoint.tensor)}
    (folder / "config.json").write_text(json.dumps(to_hf(cfg), indent=1) + "\n", encoding="utf-8")
    build_tokenizer(checkpoint.fields).save(str(folder / "tokenizer.json"))
    for name in ("config.json", "tokenizer.json"):
        crcs[name] = crc32_of(folder / name)
    files = {name: {"bytes": (folder / name).stat().st_size, "crc32": crc} for name, crc in crcs.items()}
    manifest = {"format": FORMAT, "source_sha256": package.sha256, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
