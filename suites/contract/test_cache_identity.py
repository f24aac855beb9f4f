"""Which code a cache may serve: upstream's directory name left the model out and let a port in.

Two sizes of one model then loaded each other's code, and a second run on another port compiled everything again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_impl.compilation import cache_identity, toolchain
from atom_impl.compilation.cache_identity import cache_root, code_hash, local_cache_dir, rank
from atom_impl.compilation.compiler_manager import CompilerManager
from atom_impl.config import CompilationConfig, Config
from suites.contract.small_model import small_model
from suites.contract.toy_pieces import toy_config


def directory_of(config: Config, files: Sequence[str] = (), compiler: str = "c", prefix: str = "backbone") -> Path:
    return local_cache_dir(config, files, compiler, prefix)


def full_config(**changes: Any) -> Config:
    settings: dict[str, Any] = {"hf_config": small_model(), "device": "cpu", "dtype": torch.float32, **changes}
    compilation = settings.pop("compilation", {"level": 3})
    return Config(compilation_config=CompilationConfig(**compilation), **settings)


DISTINCT: dict[str, Callable[[], Path]] = {
    "base": lambda: directory_of(full_config()),
    "a wider model": lambda: directory_of(full_config(hf_config=small_model(intermediate_size=256))),
    "another dtype": lambda: directory_of(full_config(dtype=torch.bfloat16)),
    "more tokens": lambda: directory_of(full_config(max_num_batched_tokens=4096)),
    "another level": lambda: directory_of(full_config(compilation={"level": 2})),
    "other split ops": lambda: directory_of(full_config(compilation={"level": 3, "splitting_ops": ["aiter.x"]})),
    "no Inductor": lambda: directory_of(full_config(compilation={"level": 3, "use_inductor": False})),
    "an Inductor option": lambda: directory_of(
        full_config(compilation={"level": 3, "inductor_compile_config": {"max_autotune": True}})
    ),
    "compile sizes": lambda: directory_of(full_config(compilation={"level": 3, "compile_sizes": [4]})),
    "another toolchain": lambda: directory_of(full_config(), compiler="d"),
}


def test_every_edit_that_changes_code_has_a_directory_of_its_own() -> None:
    names = {edit: make() for edit, make in DISTINCT.items()}
    assert len(set(names.values())) == len(names), names
    assert {edit: make() for edit, make in DISTINCT.items()} == names


def test_paths_ports_and_times_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = directory_of(full_config())
    monkeypatch.setenv("MASTER_PORT", "29511")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.7")
    monkeypatch.chdir(tmp_path)
    edited = full_config(model="/models/elsewhere", compilation={"level": 3, "debug_dump_path": str(tmp_path)})
    edited.compilation_config.compilation_time = 12.5
    edited.compilation_config.static_forward_context["layer.0"] = object()
    assert directory_of(edited) == base


def test_a_changed_source_file_has_another_directory_and_a_moved_one_has_not(tmp_path: Path) -> None:
    first, moved = tmp_path / "a" / "model.py", tmp_path / "b" / "model.py"
    for path in (first, moved):
        path.parent.mkdir()
        path.write_text("x = 1\n")
    assert code_hash([str(first)]) == code_hash([str(moved), "<string>", "<frozen os>"])
    before = directory_of(full_config(), [str(first)])
    first.write_text("x = 2\n")
    assert directory_of(full_config(), [str(first)]) != before


def test_the_users_directory_replaces_the_hash_and_keeps_rank_and_tag(tmp_path: Path) -> None:
    config = full_config(compilation={"level": 3, "cache_dir": str(tmp_path)})
    assert directory_of(config, prefix="drafter") == tmp_path / "rank_0" / "drafter"


def test_the_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ATOM_CACHE_ROOT", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "atom"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "atom"
    monkeypatch.setenv("ATOM_CACHE_ROOT", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"


def test_ranks_are_told_apart_before_torch_distributed_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    assert rank() == 5
    assert directory_of(full_config()).parent.name == "rank_5"
    monkeypatch.delenv("RANK")
    assert rank() == 0


@pytest.mark.parametrize("fact", ["torch", "torch_source", "triton", "cpu", "compiler", "gpu", "hip", "machine"])
def test_each_fact_of_the_toolchain_changes_the_compilers_hash(fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = CompilerManager(toy_config(use_inductor=True).compilation_config)
    before = manager.compute_hash(None)
    facts = dict(toolchain._build())
    assert fact in facts
    monkeypatch.setattr(toolchain, "_build", lambda: {**facts, fact: "another"})
    assert manager.compute_hash(None) != before


def test_switches_that_change_generated_code_change_the_compilers_hash() -> None:
    manager = CompilerManager(toy_config(use_inductor=True).compilation_config)
    before = manager.compute_hash(None)
    with torch._inductor.config.patch(max_autotune=True):
        assert manager.compute_hash(None) != before
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert manager.compute_hash(None) != before
    finally:
        torch.set_num_threads(threads)
    assert manager.compute_hash(None) == before


def test_the_identity_module_imports_no_network_or_clock() -> None:
    """What the name may not depend on is easiest to keep out when it cannot be read."""
    assert not {"time", "socket", "datetime", "uuid"} & set(vars(cache_identity))
    assert replace(full_config()).compute_hash() == full_config().compute_hash()
