"""The adaptor for torch below 2.8, tried on any torch: what it compiles, what the next process finds, what it refuses.

It was only ever run beside newer torch, in the process that had compiled. CONTRIBUTING says how it is run on 2.7.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from suites.contract.toy_pieces import toy, toy_batch, toy_config

DISTINCT = 3  # first, middle and last piece
ROWS = (4, 1, 0, 3, 64)

START = """
import json, sys, torch
from atom_impl.compilation import compiler_manager
from atom_impl.utils.compilation_counter import compilation_counter
from suites.contract.toy_pieces import toy, toy_batch, toy_config

cache, first, saved, layers = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
compiler_manager.has_standalone_compile = lambda: False
model = toy(toy_config(use_inductor=True, cache_dir=cache), layers=layers)
with torch.inference_mode():
    model(*toy_batch(first, seed=first))
    torch.save({rows: model(*toy_batch(rows, seed=rows)) for rows in (4, 1, 0, 3, 64)}, saved)
print(json.dumps(compilation_counter.as_dict()))
"""


class Starts:
    """Fresh processes over one cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"

    def start(self, first: int = 4, layers: int = 4) -> tuple[dict[str, int], dict[int, torch.Tensor]]:
        """Its counters, and its outputs by rows."""
        saved = self.folder / "outputs.pt"
        command = [sys.executable, "-c", START, str(self.cache), str(first), str(saved), str(layers)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), torch.load(saved)

    @property
    def entries(self) -> list[Path]:
        return sorted(path for path in self.cache.rglob("fxgraph/*/*/*") if path.is_file())


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    return Starts(tmp_path)


def test_the_first_process_compiles_each_distinct_piece_and_the_next_none(starts: Starts) -> None:
    cold, first = starts.start()
    assert (cold["num_inductor_compiles"], cold["num_compiled_artifacts_saved"]) == (DISTINCT, DISTINCT)
    assert (cold["cache_misses"], cold["cache_misses.absent"]) == (DISTINCT, DISTINCT)
    warm, second = starts.start(first=1)
    assert (warm["num_inductor_compiles"], warm["num_cache_hits"], warm["cache_misses"]) == (0, DISTINCT, 0)
    assert all(torch.equal(first[rows], second[rows]) for rows in ROWS)
    model = toy(toy_config(0))
    for rows, output in first.items():
        torch.testing.assert_close(output, model(*toy_batch(rows, seed=rows)))


def test_what_a_deeper_model_does_not_find_is_counted(starts: Starts) -> None:
    """Inductor's own hash of a piece can change with the graph around it; the code is then found by that."""
    starts.start()
    deeper, outputs = starts.start(layers=7)
    assert deeper["num_cache_hits"] + deeper["cache_misses"] == DISTINCT
    model = toy(toy_config(0), layers=7)
    for rows, output in outputs.items():
        torch.testing.assert_close(output, model(*toy_batch(rows, seed=rows)))


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


@pytest.mark.parametrize(("damage", "reason"), [(_cut, "corrupt"), (Path.unlink, "missing")])
def test_a_spoilt_entry_is_a_counted_miss_and_is_compiled_again(
    damage: Callable[[Path], Any], reason: str, starts: Starts
) -> None:
    _, first = starts.start()
    for entry in starts.entries:
        damage(entry)
    again, second = starts.start()
    assert (again["num_inductor_compiles"], again[f"cache_misses.{reason}"]) == (DISTINCT, DISTINCT)
    assert all(torch.equal(first[rows], second[rows]) for rows in ROWS)
    assert starts.start()[0]["num_cache_hits"] == DISTINCT
