"""Level 3 from the traced graph to the stitched callable, without a compiler: counts, order, files, copies.

Upstream compiled thirty equal layers thirty times, ran a second trace of one model without a word, and took the first
batch for the largest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from atom_impl.compilation.compile_gate import refusing_compiles
from atom_impl.compilation.compilers import EagerAdaptor
from atom_impl.compilation.copy_inputs import StaticInputs
from atom_impl.config import CUDAGraphMode
from atom_impl.utils import backends
from atom_impl.utils.backends import VllmBackend, set_model_tag
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.cuda_piecewise_backend import PiecewiseBackend
from suites.contract.toy_pieces import ToyBody, toy, toy_batch, toy_config

pytestmark = pytest.mark.usefixtures("own_cache", "inference")


def compiled_with(backend: VllmBackend, layers: int = 4) -> Any:
    torch.manual_seed(11)
    return torch.compile(ToyBody(backend.config, layers), backend=backend, fullgraph=True, dynamic=True)


@pytest.mark.parametrize(("layers", "distinct"), [(1, 2), (2, 3), (4, 3), (6, 3)])
def test_equal_pieces_are_compiled_once(layers: int, distinct: int) -> None:
    model, batch = toy(toy_config(), layers=layers), toy_batch(3)
    with compilation_counter.expect(
        num_piecewise_graphs_seen=2 * layers + 1,
        num_piecewise_capturable_graphs_seen=layers + 1,
        num_backend_compilations=layers + 1,
        num_eager_compiles=distinct,
        num_piece_reuses=layers + 1 - distinct,
        num_inductor_compiles=0,
    ):
        assert torch.equal(model(*batch), model.forward(*batch))


def test_every_piece_but_the_split_ops_becomes_a_piecewise_backend() -> None:
    backend = VllmBackend(toy_config(compile_sizes=[4, 2]))
    compiled_with(backend)(*toy_batch(3))
    assert backend.split_gm is not None
    assert [item.is_splitting_graph for item in backend.piecewise_graphs] == [False, True] * 4 + [False]
    for item in backend.piecewise_graphs:
        installed = backend.split_gm.__dict__[item.submod_name]
        assert isinstance(installed, PiecewiseBackend) is not item.is_splitting_graph
        if isinstance(installed, PiecewiseBackend):
            assert sorted(installed.concrete_size_entries) == [2, 4]


def test_the_users_inductor_options_reach_every_piece_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[tuple[Any, Any]] = []
    plain = EagerAdaptor.compile

    def noting(self: Any, graph: Any, inputs: Any, config: Any, runtime_shape: Any = None, key: Any = None) -> Any:
        handed.append((runtime_shape, config))
        return plain(self, graph, inputs, config, runtime_shape, key)

    monkeypatch.setattr(EagerAdaptor, "compile", noting)
    options = {"epilogue_fusion": False}
    model = toy(toy_config(compile_sizes=[4], inductor_compile_config=options), layers=1)
    for rows in (3, 4):
        model(*toy_batch(rows))
    assert handed == [(None, options)] * 2 + [(4, options)] * 2


def test_a_second_graph_for_one_backend_is_an_error() -> None:
    backend = VllmBackend(toy_config())
    compiled_with(backend)(*toy_batch(3))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="VllmBackend can only be called once"):
        compiled_with(backend)(*toy_batch(3))


def test_the_stitched_graph_is_written_for_people(tmp_path: Path) -> None:
    toy(toy_config())(*toy_batch(3))
    (path,) = (tmp_path / "cache").rglob("computation_graph.py")
    text = path.read_text()
    assert text.startswith("from __future__ import annotations\nimport torch\n")
    assert "class GraphModule" in text
    assert "submod_0" in text
    compile(text, str(path), "exec")


def test_artefacts_go_below_hash_rank_and_tag(tmp_path: Path) -> None:
    config = toy_config()
    toy(config)(*toy_batch(3))
    directory = Path(config.compilation_config.local_cache_dir or "")
    assert directory.relative_to(tmp_path / "cache").parts[0] == "torch_compile_cache"
    assert directory.parts[-2:] == ("rank_0", "backbone")
    assert directory.stat().st_mode & 0o077 == 0


def test_a_drafter_keeps_its_artefacts_apart() -> None:
    with set_model_tag("drafter"):
        assert VllmBackend(toy_config()).prefix == "drafter"
        with pytest.raises(ValueError, match="already set"), set_model_tag("drafter"):
            pass
    assert backends.model_tag == "backbone"
    with pytest.raises(KeyError), set_model_tag("drafter"):
        raise KeyError
    assert backends.model_tag == "backbone"
    assert VllmBackend(toy_config(), prefix="given").prefix == "given"


def test_the_traced_sources_are_forgotten_once_they_are_hashed() -> None:
    config = toy_config()
    config.compilation_config.traced_files.add("stale.py")
    toy(config)(*toy_batch(3))
    assert config.compilation_config.traced_files == set()


def test_a_split_of_the_whole_into_one_piece_still_runs() -> None:
    model, batch = toy(toy_config(splitting_ops=[])), toy_batch(3)
    with compilation_counter.expect(num_piecewise_graphs_seen=1, num_piecewise_capturable_graphs_seen=1):
        assert torch.equal(model(*batch), model.forward(*batch))


def test_declared_sizes_compile_before_they_are_recorded_and_are_refused_in_a_recording() -> None:
    model = toy(toy_config(compile_sizes=[2, 4]))
    batches = {rows: toy_batch(rows) for rows in (2, 4)}
    model(*batches[4])  # the model's warm-up: general code
    with compilation_counter.expect(num_eager_compiles=3, num_piece_reuses=2):
        assert torch.equal(model(*batches[4]), model.forward(*batches[4]))
    with refusing_compiles("bucket 4 is being recorded"):
        assert torch.equal(model(*batches[4]), model.forward(*batches[4]))
    with refusing_compiles("bucket 2 is being recorded"), pytest.raises(RuntimeError, match="size 2"):
        model(*batches[2])
    assert torch.equal(model(*batches[2]), model.forward(*batches[2]))


def copying_config(mode: CUDAGraphMode) -> Any:
    config = toy_config(cudagraph_copy_inputs=True, cudagraph_mode=mode)
    config.max_num_batched_tokens = 8
    return config


def test_copied_inputs_stay_at_their_addresses_and_are_counted() -> None:
    model = toy(copying_config(CUDAGraphMode.TR_HYBRID))
    for rows in (3, 1, 8, 2):
        ids, positions = toy_batch(rows, seed=rows)
        with compilation_counter.expect(num_input_copies=2, input_copy_bytes=2 * 8 * rows):
            assert torch.equal(model(ids, positions), model.forward(ids, positions))


def test_inputs_are_not_copied_without_graphs() -> None:
    model = toy(copying_config(CUDAGraphMode.NONE))
    with compilation_counter.expect(num_input_copies=0):
        model(*toy_batch(3))


def test_a_batch_larger_than_the_buffers_is_an_error_that_names_the_way_out() -> None:
    model = toy(copying_config(CUDAGraphMode.TR_HYBRID))
    model(*toy_batch(3))
    with pytest.raises(ValueError, match=r"input \d of shape \(9,\) is larger .* raise max_num_batched_tokens"):
        model(*toy_batch(9))
    assert torch.equal(model(*toy_batch(8)), model.forward(*toy_batch(8)))


def test_static_buffers_never_move_and_keep_each_layout() -> None:
    seen: list[tuple[int, ...]] = []

    def note(columns: torch.Tensor, constant: torch.Tensor) -> torch.Tensor:
        seen.append((columns.data_ptr(), *columns.stride()))
        return columns.sum(0) + constant

    static = StaticInputs(note, {0: [1], 1: []}, max_rows=6)
    staging, constant = torch.arange(24.0).reshape(3, 8), torch.tensor(1.0)
    for columns in (2, 6, 1):
        view = staging[:, :columns]
        assert torch.equal(static(view, constant), view.sum(0) + 1)
    assert len(set(seen)) == 1
    assert seen[0][1:] == (8, 1)
