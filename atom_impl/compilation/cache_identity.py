"""Where the compiled code of one model, configuration, source and machine lives.

Upstream's directory name left the model out and let the data-parallel port in: two sizes of one model shared their
artefacts, and no two runs on a cluster did. The name here covers what changes the code, and nothing that does not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from atom_impl.config import Config
from atom_impl.utils.stable_hash import stable_hash


def cache_root() -> Path:
    """`$ATOM_CACHE_ROOT`, else `$XDG_CACHE_HOME/atom`, else `~/.cache/atom`."""
    explicit = os.environ.get("ATOM_CACHE_ROOT")
    if explicit:
        return Path(explicit).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path("~/.cache")).expanduser() / "atom"


def code_hash(traced_files: Iterable[str]) -> str:
    """Hash of the contents of the traced source files, in the order of their names. Their directories do not count.

    Code that came from no file, such as `<string>`, is left to the piece's own fingerprint.
    """
    contents = []
    for name in traced_files:
        path = Path(name)
        if not name.startswith("<") and path.is_file():
            contents.append((path.name, hashlib.sha256(path.read_bytes()).hexdigest()))
    return stable_hash(sorted(contents))


def local_cache_dir(config: Config, traced_files: Iterable[str], compiler_hash: str, prefix: str) -> Path:
    """`<root>/torch_compile_cache/<hash>/rank_<i>/<prefix>`, or the same below the user's `cache_dir` in place of
    `<hash>`.
    """
    compilation = config.compilation_config
    if compilation.cache_dir:
        base = Path(compilation.cache_dir).expanduser()
    else:
        identity = stable_hash([config.compute_hash(), code_hash(traced_files), compiler_hash])[:10]
        base = cache_root() / "torch_compile_cache" / identity
    return base / f"rank_{rank()}" / prefix


def rank() -> int:
    """This process's rank: the distributed one, else the launcher's, else 0. Device indices repeat across processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0
