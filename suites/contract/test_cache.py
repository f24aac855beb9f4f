"""Which code a cache may serve, and what it does with files that are missing, cut, changed or someone else's.

Upstream's directory name left the model out and let a port in, its table was written in place, one missing artefact
ended the start-up, and a changed one was loaded.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_impl.compilation import cache_identity, compiler_manager, toolchain
from atom_impl.compilation.artefact_store import (
    MANIFEST,
    ArtefactMiss,
    locked,
    private_dir,
    publish,
    verify,
    write_atomically,
)
from atom_impl.compilation.cache_identity import cache_root, code_hash, local_cache_dir, rank
from atom_impl.compilation.compiler_manager import CACHE_FILE, CompilerManager
from atom_impl.config import CompilationConfig, Config
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.compiler_inferface import CompilerInterface
from suites.contract.small_model import small_model
from suites.contract.toy_pieces import op_graph, toy_config


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


def fill(text: str) -> Callable[[Path], None]:
    def write(content: Path) -> None:
        (content / "fxgraph").mkdir(parents=True)
        (content / "fxgraph" / "code.py").write_text(text)

    return write


def cut(path: Path) -> None:
    file = path / "fxgraph" / "code.py"
    file.write_bytes(file.read_bytes()[:3])


def flip(path: Path) -> None:
    file = path / "fxgraph" / "code.py"
    content = bytearray(file.read_bytes())
    content[2] ^= 1
    file.write_bytes(content)


def escape(path: Path) -> None:
    outside = path.parent / "outside"
    outside.write_text("x")
    manifest = path / MANIFEST
    manifest.write_text(manifest.read_text().replace("fxgraph/code.py", "../outside"))


DAMAGE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "the directory is gone": ("missing", lambda path: path.rename(path.parent / "moved")),
    "a file is cut": ("corrupt", cut),
    "a bit is flipped": ("corrupt", flip),
    "a file is gone": ("corrupt", lambda path: (path / "fxgraph" / "code.py").unlink()),
    "the manifest is gone": ("corrupt", lambda path: (path / MANIFEST).unlink()),
    "the manifest is cut": ("corrupt", lambda path: (path / MANIFEST).write_text('{"files": {')),
    "the manifest is a list": ("corrupt", lambda path: (path / MANIFEST).write_text("[]")),
    "the manifest names no files": (
        "corrupt",
        lambda path: (path / MANIFEST).write_text('{"format": 1, "owner": "me", "files": {}}'),
    ),
    "the manifest points outside": ("corrupt", escape),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_artefact_is_a_miss_with_its_reason(damage: str, tmp_path: Path) -> None:
    path = publish(tmp_path, "key", "me", fill("compiled"))
    verify(path, "me")
    reason, do = DAMAGE[damage]
    do(path)
    with pytest.raises(ArtefactMiss) as caught:
        verify(path, "me")
    assert caught.value.reason == reason


def test_an_artefact_of_another_build_is_foreign(tmp_path: Path) -> None:
    path = publish(tmp_path, "key", "torch 2.11", fill("compiled"))
    with pytest.raises(ArtefactMiss) as caught:
        verify(path, "torch 2.13")
    assert caught.value.reason == "foreign"


def test_files_that_a_load_adds_are_not_judged(tmp_path: Path) -> None:
    path = publish(tmp_path, "key", "me", fill("compiled"))
    (path / "locks").mkdir()
    (path / "locks" / "x.lock").touch()
    verify(path, "me")


def test_a_write_that_fails_leaves_nothing_behind_and_keeps_what_was_there(tmp_path: Path) -> None:
    path = publish(tmp_path, "key", "me", fill("old"))

    def fail(content: Path) -> None:
        content.mkdir()
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        publish(tmp_path, "key", "me", fail)
    verify(path, "me")
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_publishing_again_replaces_the_whole(tmp_path: Path) -> None:
    publish(tmp_path, "key", "me", fill("old"))
    path = publish(tmp_path, "key", "me", fill("new"))
    verify(path, "me")
    assert (path / "fxgraph" / "code.py").read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_a_text_file_is_whole_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "table.py"
    write_atomically(target, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed here")))
    with pytest.raises(OSError, match="killed here"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.py"]


def test_the_cache_directory_is_private(tmp_path: Path) -> None:
    made = private_dir(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(PermissionError, match="may be written by others"):
        private_dir(shared)


def test_a_lock_that_cannot_be_had_is_told_and_not_waited_for_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atom_impl.compilation.artefact_store.LOCK_TIMEOUT_S", 0.05)
    with locked(tmp_path, "piece") as first, locked(tmp_path, "piece") as second:
        assert (first, second) == (True, False)
    with locked(tmp_path, "piece") as again:
        assert again is True


class FileCompiler(CompilerInterface):
    """Compiles a graph to a file, and loads it when the file is there."""

    name = "file"

    def __init__(self, works: bool = True) -> None:
        self.compiled: list[str] = []
        self.works = works

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        self.directory = Path(cache_dir)

    def compile(
        self, graph: Any, example_inputs: Any, compiler_config: Any, runtime_shape: Any = None, key: Any = None
    ) -> Any:
        self.compiled.append(key)
        if not self.works:
            return None, None
        (self.directory / f"{key}.txt").write_text("code")
        return graph.forward, (key, f"{key}.txt")

    def load(self, handle: Any, graph: Any, example_inputs: Any, graph_index: int, runtime_shape: Any = None) -> Any:
        if not (self.directory / handle[1]).exists():
            raise ArtefactMiss("missing", handle[1])
        return graph.forward


def manager_in(directory: Path, *, disable: bool = False, works: bool = True) -> tuple[CompilerManager, FileCompiler]:
    manager = CompilerManager(toy_config().compilation_config)
    compiler = FileCompiler(works)
    manager.compiler = compiler
    manager.initialize_cache(str(directory), disable_cache=disable)
    return manager, compiler


RELU, TANH = op_graph([torch.relu]), op_graph([torch.tanh])
X = [torch.ones(2)]


def test_the_table_has_the_documented_key_and_is_a_python_literal(tmp_path: Path) -> None:
    manager, _ = manager_in(tmp_path / "c")
    manager.compile(RELU, X, {}, graph_index=0, num_graphs=2)
    manager.compile(TANH, X, {}, graph_index=1, num_graphs=2, runtime_shape=4)
    assert set(manager.cache) == {(None, 0, "file"), (4, 1, "file")}
    reread, _ = manager_in(tmp_path / "c")
    assert reread.cache == manager.cache


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    manager_in(tmp_path / "c")[0].compile(RELU, X, {})
    manager, compiler = manager_in(tmp_path / "c")
    with compilation_counter.expect(num_cache_hits=2, cache_misses=0, num_cache_entries_updated=0):
        assert manager.load(RELU, X, 0) is not None
        manager.compile(RELU, X, {})
    assert compiler.compiled == []


def test_a_start_that_learns_nothing_new_leaves_the_table_alone(tmp_path: Path) -> None:
    manager_in(tmp_path / "c")[0].compile(RELU, X, {})
    before = (tmp_path / "c" / CACHE_FILE).stat()
    manager_in(tmp_path / "c")[0].compile(RELU, X, {})
    after = (tmp_path / "c" / CACHE_FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_time_spent_on_pieces_is_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, _ = manager_in(tmp_path / "c")
    clock = iter([10.0, 11.5, 20.0, 20.25])
    monkeypatch.setattr(compiler_manager, "time", SimpleNamespace(perf_counter=clock.__next__))
    manager.compile(RELU, X, {}, graph_index=0, num_graphs=2)
    manager.compile(TANH, X, {}, graph_index=1, num_graphs=2)
    assert manager.compilation_config.compilation_time == 1.75


def test_another_graph_at_the_same_place_is_not_served(tmp_path: Path) -> None:
    manager_in(tmp_path / "c")[0].compile(RELU, X, {})
    manager, compiler = manager_in(tmp_path / "c")
    with compilation_counter.expect(**{"num_cache_hits": 0, "cache_misses.absent": 1}):
        assert manager.compile(TANH, X, {})(torch.ones(2)).equal(torch.tanh(torch.ones(2)))
    assert len(compiler.compiled) == 1


@pytest.mark.parametrize(
    "change",
    [{"runtime_shape": 4}, {"inductor_config": {"max_autotune": True}}, {"example_inputs": [torch.ones(3)]}],
    ids=["shape", "options", "inputs"],
)
def test_another_shape_option_or_input_is_not_served(change: dict[str, Any], tmp_path: Path) -> None:
    first: dict[str, Any] = {"graph": RELU, "example_inputs": X, "inductor_config": {}}
    manager_in(tmp_path / "c")[0].compile(**first)
    manager, compiler = manager_in(tmp_path / "c")
    manager.compile(**{**first, **change})
    assert len(compiler.compiled) == 1


def test_the_same_code_at_another_place_is_served(tmp_path: Path) -> None:
    manager_in(tmp_path / "c")[0].compile(RELU, X, {}, graph_index=3, num_graphs=9)
    manager, compiler = manager_in(tmp_path / "c")
    with compilation_counter.expect(num_cache_hits=1, num_cache_entries_updated=1):
        manager.compile(RELU, X, {}, graph_index=5, num_graphs=9)
    assert compiler.compiled == []


def test_a_missing_artefact_is_compiled_again_and_counted(tmp_path: Path) -> None:
    first, _ = manager_in(tmp_path / "c")
    first.compile(RELU, X, {})
    for file in (tmp_path / "c").glob("*.txt"):
        file.unlink()
    manager, compiler = manager_in(tmp_path / "c")
    with compilation_counter.expect(**{"num_cache_hits": 0, "cache_misses.missing": 1}):
        manager.compile(RELU, X, {})
    assert len(compiler.compiled) == 1


BAD_TABLES = {
    "cut": "{(None, 0, 'file'): ('ke",
    "empty": "",
    "not a dict": "[1, 2]",
    "wrong keys": "{1: ('key', 'path')}",
    "wrong handles": "{(None, 0, 'file'): 7}",
    "code": "__import__('os').environ.__setitem__('TABLE_WAS_EXECUTED', '1')",
    "deep": "(" * 5000,
    "binary": "\x00\x01",
}


@pytest.mark.parametrize("text", BAD_TABLES)
def test_a_table_that_is_none_is_empty_counted_and_never_executed(text: str, tmp_path: Path) -> None:
    private_dir(tmp_path / "c")
    (tmp_path / "c" / CACHE_FILE).write_text(BAD_TABLES[text])
    with compilation_counter.expect(**{"cache_misses.corrupt": 1}):
        manager, _ = manager_in(tmp_path / "c")
    assert manager.cache == {}
    assert "TABLE_WAS_EXECUTED" not in os.environ
    manager.compile(RELU, X, {})
    assert manager_in(tmp_path / "c")[0].cache == manager.cache != {}


def test_a_disabled_cache_reads_and_writes_nothing(tmp_path: Path) -> None:
    manager_in(tmp_path / "c")[0].compile(RELU, X, {})
    table = (tmp_path / "c" / CACHE_FILE).read_bytes()
    manager, compiler = manager_in(tmp_path / "c", disable=True)
    manager.compile(TANH, X, {})
    manager.compile(RELU, X, {})
    assert len(compiler.compiled) == 2
    assert manager.cache == {}
    assert (tmp_path / "c" / CACHE_FILE).read_bytes() == table


def test_a_compiler_that_returns_nothing_is_an_error(tmp_path: Path) -> None:
    manager, _ = manager_in(tmp_path / "c", works=False)
    with pytest.raises(RuntimeError, match="Failed to compile the graph: file returned nothing for piece 0"):
        manager.compile(RELU, X, {})


def test_two_managers_of_one_directory_keep_each_others_entries(tmp_path: Path) -> None:
    first, _ = manager_in(tmp_path / "c")
    second, _ = manager_in(tmp_path / "c")
    first.compile(RELU, X, {}, graph_index=0, num_graphs=2)
    second.compile(TANH, X, {}, graph_index=1, num_graphs=2)
    assert set(manager_in(tmp_path / "c")[0].cache) == {(None, 0, "file"), (None, 1, "file")}


def _compile_in_a_process(directory: str, queue: Any) -> None:
    manager, compiler = manager_in(Path(directory))
    for index in range(4):
        manager.compile(op_graph([torch.relu] * (index + 1)), X, {}, graph_index=index, num_graphs=4)
    queue.put(len(compiler.compiled))


def test_many_processes_compile_each_piece_once_between_them(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_compile_in_a_process, args=(str(tmp_path / "c"), queue)) for _ in range(4)]
    for process in processes:
        process.start()
    compiled = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sum(compiled) == 4
    assert len(manager_in(tmp_path / "c")[0].cache) == 4


def test_the_identity_module_imports_no_network_or_clock() -> None:
    """What the name may not depend on is easiest to keep out when it cannot be read."""
    assert not {"time", "socket", "datetime", "uuid"} & set(vars(cache_identity))
    assert replace(full_config()).compute_hash() == full_config().compute_hash()
