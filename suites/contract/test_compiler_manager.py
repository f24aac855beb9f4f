"""Compile or load: one missing artefact ended upstream's start-up, and another graph's code was served at its place.

Here every piece is found by what it is, whatever cannot be loaded is compiled again, and the table is never executed.
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_impl.compilation import compiler_manager
from atom_impl.compilation.artefact_store import ArtefactMiss, private_dir
from atom_impl.compilation.compiler_manager import CACHE_FILE, CompilerManager
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.compiler_inferface import CompilerInterface
from suites.contract.toy_pieces import op_graph, toy_config


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
