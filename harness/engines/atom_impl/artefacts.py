"""Hashes of what a cell's figures depend on: recordings, compiled pieces, generated code and weights.

A figure that moved while every hash stayed points at the machine; a hash that moved names the part to look at.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from atom_impl.compilation.compiler_manager import CACHE_FILE
from atom_impl.config import Config


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weight_hash(weights: Mapping[str, torch.Tensor]) -> str:
    """Shapes and dtypes: what code depends on. The values are the model's identity, which the cell names."""
    return sha("\n".join(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}" for name, tensor in weights.items()))


def code_hashes(config: Config) -> dict[str, str]:
    """Compiled pieces by their graphs, and the files that Inductor generated for them, as the cache's manifests list
    them.
    """
    folder = config.compilation_config.local_cache_dir
    if folder is None or not (Path(folder) / CACHE_FILE).is_file():
        return {}
    sources: dict[str, str] = {}
    for manifest in Path(folder).glob("*/manifest.json"):
        files: dict[str, str] = json.loads(manifest.read_text())["files"]
        sources |= {digest: Path(name).suffix for name, digest in files.items() if Path(name).suffix in (".cpp", ".py")}
    table = (Path(folder) / CACHE_FILE).read_text()
    hashes = {"pieces": sha(table), "generated code": sha("\n".join(sorted(sources)))}
    return hashes | _distinct_pieces(ast.literal_eval(table))


def _distinct_pieces(table: Mapping[tuple[int | None, int, str], tuple[str, ...]]) -> dict[str, str]:
    """A hash for each distinct piece, by the first place where it stands."""
    named: dict[str, str] = {}
    for (shape, index, _), handle in sorted(table.items(), key=lambda entry: entry[0][1]):
        named.setdefault(handle[0], f"piece {index}{'' if shape is None else f' for {shape} rows'}")
    return {title: sha(name) for name, title in named.items()}
