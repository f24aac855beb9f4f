"""Real compiles, cold and warm: how many, from where, and to the last bit.

Warm starts ran g++ again for every piece, loaded artefacts were invisible to a software recording, and a damaged one
ended the start-up.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_impl.compilation.artefact_store import MANIFEST
from atom_impl.utils.compilation_counter import compilation_counter
from suites.contract.toy_pieces import toy, toy_batch, toy_config

ROWS = (4, 1, 0, 3, 64)
DISTINCT = 3  # first, middle and last piece of any number of layers from two on


@dataclass
class Cold:
    root: Path
    outputs: dict[int, torch.Tensor]
    counts: dict[str, int]
    kernels: dict[str, int]


def run_toy(
    root: Path, first: int = ROWS[0], kernels: dict[str, int] | None = None, **compilation: Any
) -> dict[int, torch.Tensor]:
    """Outputs by rows; `kernels` is filled with what was generated for each piece."""
    config = toy_config(use_inductor=True, cache_dir=str(root), **compilation)
    model = toy(config)
    with torch.inference_mode():
        model(*toy_batch(first, seed=first))
        outputs = {rows: model(*toy_batch(rows, seed=rows)).clone() for rows in ROWS}
    if kernels is not None:
        kernels.update(config.compilation_config.generated_kernels)
    return outputs


def same_bits(left: dict[int, torch.Tensor], right: dict[int, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[rows], right[rows]) for rows in left)


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Cold:
    """The toy compiled once into an empty cache; tests copy the cache before they touch it."""
    root = tmp_path_factory.mktemp("cold") / "cache"
    before, kernels = compilation_counter.as_dict(), dict[str, int]()
    outputs = run_toy(root, kernels=kernels)
    after = compilation_counter.as_dict()
    return Cold(root, outputs, {name: count - before.get(name, 0) for name, count in after.items()}, kernels)


@pytest.fixture
def copied(cold: Cold, tmp_path: Path) -> Path:
    shutil.copytree(cold.root, tmp_path / "moved")
    return tmp_path / "moved"


def artefacts(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.rglob(MANIFEST))


def test_a_cold_start_compiles_each_distinct_piece_once(cold: Cold) -> None:
    assert cold.counts["num_inductor_compiles"] == DISTINCT
    assert cold.counts["num_backend_compilations"] == 5
    assert cold.counts["num_piece_reuses"] == 2
    assert cold.counts["num_compiled_artifacts_saved"] == DISTINCT
    assert cold.counts["cache_misses"] == cold.counts["cache_misses.absent"] == DISTINCT
    assert len(artefacts(cold.root)) == DISTINCT


def test_the_compiled_toy_agrees_with_the_eager_one(cold: Cold) -> None:
    model = toy(toy_config(0))
    for rows, output in cold.outputs.items():
        torch.testing.assert_close(output, model(*toy_batch(rows, seed=rows)))


def test_a_warm_start_compiles_nothing_and_gives_the_same_bits(cold: Cold) -> None:
    with compilation_counter.expect(
        num_inductor_compiles=0,
        num_cache_hits=DISTINCT,
        num_piece_reuses=2,
        num_cache_entries_updated=0,
        cache_misses=0,
    ):
        assert same_bits(run_toy(cold.root), cold.outputs)


def test_what_was_traced_first_changes_neither_artefacts_nor_bits(cold: Cold) -> None:
    for first in (1, 7):
        with compilation_counter.expect(num_inductor_compiles=0, num_cache_hits=DISTINCT):
            assert same_bits(run_toy(cold.root, first=first), cold.outputs)


def test_a_cold_start_runs_what_it_saved(tmp_path: Path) -> None:
    """Kernels that are tuned when they first run must be tuned once, or a warm start has other bits."""
    from torch._inductor.codecache import PyCodeCache

    run_toy(tmp_path / "cache")
    loaded = {str(module.__file__) for module in PyCodeCache.modules}
    for path in artefacts(tmp_path / "cache"):
        assert any(name.startswith(str(path)) for name in loaded), path


def test_a_moved_cache_is_as_good(cold: Cold, copied: Path) -> None:
    with compilation_counter.expect(num_inductor_compiles=0, num_cache_hits=DISTINCT):
        assert same_bits(run_toy(copied), cold.outputs)


def test_more_equal_layers_need_no_further_code(cold: Cold) -> None:
    with compilation_counter.expect(num_inductor_compiles=0, num_cache_hits=DISTINCT), torch.inference_mode():
        model = toy(toy_config(use_inductor=True, cache_dir=str(cold.root)), layers=7)
        torch.testing.assert_close(model(*toy_batch(5)), model.forward(*toy_batch(5)))


def test_an_artefact_holds_its_kernels_compiled(cold: Cold) -> None:
    """Without the libraries a warm start runs the C++ compiler, and waits for it."""
    for path in artefacts(cold.root):
        sources, libraries = list(path.rglob("*.main.cpp")), list(path.rglob("*.main.so"))
        assert sources
        assert len(libraries) == len(sources)


def test_the_kernels_of_each_distinct_piece_are_counted_alike_cold_and_warm(cold: Cold, copied: Path) -> None:
    """On the CPU each kernel has a library of its own; an artefact keeps those that Inductor threw away as well."""
    libraries = sorted(len(list(path.rglob("*.main.so"))) for path in artefacts(cold.root))
    assert all(1 <= count <= most for count, most in zip(sorted(cold.kernels.values()), libraries, strict=True))
    assert sorted(cold.kernels) == ["piece 0", "piece 1", "piece 4"]
    warm: dict[str, int] = {}
    run_toy(copied, kernels=warm)
    assert warm == cold.kernels


def test_loaded_kernels_stay_visible_to_a_recording(copied: Path) -> None:
    from torch._inductor.codecache import PyCodeCache

    before = {id(module) for module in PyCodeCache.modules}
    run_toy(copied)
    loaded = [module for module in PyCodeCache.modules if id(module) not in before]
    assert len(loaded) == DISTINCT
    assert all(str(copied) in str(module.__file__) for module in loaded)
    assert before <= {id(module) for module in PyCodeCache.modules}


def _cut_largest(path: Path) -> None:
    largest = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-100])


def _other_owner(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**manifest, "owner": "another build"}))


@pytest.mark.parametrize(
    ("reason", "damage"), [("missing", shutil.rmtree), ("corrupt", _cut_largest), ("foreign", _other_owner)]
)
def test_a_spoilt_artefact_is_compiled_again_counted_and_repaired(
    reason: str, damage: Any, cold: Cold, copied: Path
) -> None:
    damage(artefacts(copied)[0])
    with compilation_counter.expect(
        **{"num_inductor_compiles": 1, "num_cache_hits": DISTINCT - 1, f"cache_misses.{reason}": 1, "cache_misses": 1}
    ):
        assert same_bits(run_toy(copied), cold.outputs)
    with compilation_counter.expect(num_inductor_compiles=0, cache_misses=0):
        run_toy(copied)


def test_an_artefact_that_torch_cannot_load_is_a_counted_miss(
    cold: Cold, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise AssertionError  # torch's own way of saying so

    monkeypatch.setattr("torch._inductor.CompiledArtifact.load", refuse)
    with compilation_counter.expect(**{"num_inductor_compiles": DISTINCT, "cache_misses.unloadable": DISTINCT}):
        assert same_bits(run_toy(copied), cold.outputs)


SECOND_PROCESS = """
import json, sys, torch
torch.set_num_threads(int(sys.argv[2]))
from pathlib import Path
from atom_impl.utils.compilation_counter import compilation_counter
from suites.contract.test_inductor_artefacts import run_toy
outputs = run_toy(Path(sys.argv[1]))
torch.save(outputs, sys.argv[3])
print(json.dumps(compilation_counter.as_dict()))
"""


def test_a_second_process_compiles_nothing_and_gives_the_same_bits(cold: Cold, copied: Path, tmp_path: Path) -> None:
    saved = tmp_path / "outputs.pt"
    command = [sys.executable, "-c", SECOND_PROCESS, str(copied), str(torch.get_num_threads()), str(saved)]
    env = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert (counts["num_inductor_compiles"], counts["num_cache_hits"], counts["cache_misses"]) == (0, DISTINCT, 0)
    assert same_bits(torch.load(saved), cold.outputs)


def test_a_declared_size_is_compiled_for_itself_and_found_again(cold: Cold, copied: Path) -> None:
    sizes: dict[str, Any] = {"compile_sizes": [4], "inductor_compile_config": {"max_autotune": False}}
    with compilation_counter.expect(num_inductor_compiles=2 * DISTINCT):
        first = run_toy(copied, **sizes)
    with compilation_counter.expect(num_inductor_compiles=0, num_cache_hits=2 * DISTINCT):
        assert same_bits(run_toy(copied, **sizes), first)
    torch.testing.assert_close(first[4], cold.outputs[4])


def test_level_2_compiles_once_and_its_second_start_compiles_nothing(tmp_path: Path) -> None:
    """The whole model went through torch's own caches, which answer only after they have traced it once more."""
    for compiled, loaded in ((1, 0), (0, 1)):
        config = toy_config(2, use_inductor=True, cache_dir=str(tmp_path / "cache"))
        model = toy(config)
        expected = {"num_inductor_compiles": compiled, "num_cache_hits": loaded, "num_piecewise_graphs_seen": 0}
        with torch.inference_mode(), compilation_counter.expect(**expected):
            for rows in (1, *ROWS):
                batch = toy_batch(rows, seed=rows)
                torch.testing.assert_close(model(*batch), model.forward(*batch))
        assert config.compilation_config.generated_kernels["whole model"] > 1
