"""The interface that every compiler implements, and what the adaptors do when an artefact cannot be kept.

An artefact that could not be saved ended a start-up; an error that meant something else was swallowed with it.
"""

from __future__ import annotations

import inspect
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_impl.compilation import compiler_manager, compilers
from atom_impl.compilation.compiler_manager import make_compiler
from atom_impl.compilation.inductor_adaptor import AlwaysHitShapeEnv, InductorAdaptor
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.compiler_inferface import (
    CompilerInterface,
    EagerAdaptor,
    InductorStandaloneAdaptor,
    set_inductor_config,
)
from suites.contract.toy_pieces import op_graph, toy_config


class FakeArtefact:
    """What `standalone_compile` returns, as far as saving goes."""

    def __init__(self, error: Exception | None = None, saveable: bool = True) -> None:
        self.error = error
        self.saveable = saveable
        self.saved: list[tuple[str, str]] = []

    def is_saveable(self) -> bool:
        return self.saveable

    def save(self, *, path: str, format: str) -> None:
        if self.error is not None:
            raise self.error
        self.saved.append((path, format))
        Path(path).mkdir()
        (Path(path) / "graph").write_text("compiled")


def save(artefact: FakeArtefact, tmp_path: Path) -> Any:
    adaptor = InductorStandaloneAdaptor()
    adaptor.initialize_cache(str(tmp_path))
    return adaptor._save(artefact, "key")


def test_the_methods_have_the_documented_parameters() -> None:
    wanted = {
        "initialize_cache": ["cache_dir", "disable_cache", "prefix"],
        "compute_hash": ["vllm_config"],
        "compile": ["graph", "example_inputs", "compiler_config", "runtime_shape", "key"],
        "load": ["handle", "graph", "example_inputs", "graph_index", "runtime_shape"],
    }
    for kind in (CompilerInterface, EagerAdaptor, InductorStandaloneAdaptor, InductorAdaptor):
        for method, parameters in wanted.items():
            assert list(inspect.signature(getattr(kind, method)).parameters)[1:] == parameters, (kind, method)


def test_the_bare_interface_compiles_nothing_and_says_that_it_cannot_load() -> None:
    bare = CompilerInterface()
    assert bare.compile(op_graph([torch.relu]), [], {}) == (None, None)
    assert bare.compute_hash(None) == ""
    with pytest.raises(NotImplementedError, match="caching is not supported"):
        bare.load(("key",), op_graph([torch.relu]), [], 0)


def test_use_inductor_false_gives_a_working_eager_compiler() -> None:
    compiler = make_compiler(toy_config(use_inductor=False).compilation_config)
    graph = op_graph([torch.relu, torch.neg])
    with compilation_counter.expect(num_eager_compiles=1, num_inductor_compiles=0):
        compiled, handle = compiler.compile(graph, [torch.ones(2)], {})
    assert compiler.name == "eager"
    assert handle is None
    assert compiled is not None
    assert torch.equal(compiled(torch.tensor([-1.0, 2.0])), torch.tensor([-0.0, -2.0]))


@pytest.mark.parametrize(("standalone", "name"), [(True, "inductor_standalone"), (False, "inductor")])
def test_the_adaptor_follows_what_torch_offers(standalone: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_manager, "has_standalone_compile", lambda: standalone)
    assert make_compiler(toy_config(use_inductor=True).compilation_config).name == name


def test_one_concrete_shape_turns_tuning_on_and_every_shape_does_not() -> None:
    user = {"epilogue_fusion": False}
    assert set_inductor_config(user, None) == user
    tuned = set_inductor_config(user, 8)
    assert tuned == {"max_autotune": True, "coordinate_descent_tuning": True, "epilogue_fusion": False}
    assert user == {"epilogue_fusion": False}


def test_what_the_user_sets_wins_over_the_tuning() -> None:
    assert set_inductor_config({"max_autotune": False}, 8)["max_autotune"] is False


def test_a_saveable_artefact_is_saved_unpacked_and_counted(tmp_path: Path) -> None:
    artefact = FakeArtefact()
    with compilation_counter.expect(num_compiled_artifacts_saved=1):
        handle = save(artefact, tmp_path)
    assert handle[0] == "key"
    assert (tmp_path / handle[1] / "graph").read_text() == "compiled"
    assert [form for _, form in artefact.saved] == ["unpacked"]


@pytest.mark.parametrize(
    "artefact",
    [
        FakeArtefact(saveable=False),
        FakeArtefact(AssertionError("more than one artifact")),
        FakeArtefact(RuntimeError("CompiledArtifact.save failed to save since there's no artifact")),
        FakeArtefact(OSError(28, "No space left on device")),
    ],
    ids=["not saveable", "assertion", "legacy text", "disk full"],
)
def test_an_artefact_that_cannot_be_saved_is_used_uncached_and_counted(artefact: FakeArtefact, tmp_path: Path) -> None:
    with compilation_counter.expect(**{"num_compiled_artifacts_saved": 0, "cache_misses.unsaveable": 1}):
        assert save(artefact, tmp_path) is None
    assert artefact.saved == []
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def test_any_other_error_of_a_save_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a fault of its own"):
        save(FakeArtefact(RuntimeError("a fault of its own")), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_first_unsaveable_artefact_is_a_warning_and_the_rest_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "_warned", False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            save(FakeArtefact(saveable=False), tmp_path)
    assert caplog.text.count("is not cached") == 1


def test_the_stand_in_for_a_shape_environment_always_hits() -> None:
    env = AlwaysHitShapeEnv()
    assert env.guards == []
    assert env.evaluate_guards_expression("False", [1]) is True
    assert env.get_pruned_guards() == []
    assert env.produce_guards_expression() == ""


def test_a_compile_of_the_old_adaptor_leaves_torch_as_it_was(tmp_path: Path) -> None:
    from torch._inductor import codecache

    names = ("_check_can_cache", "_get_shape_env")
    before = [codecache.compiled_fx_graph_hash, *(vars(codecache.FxGraphCache).get(name) for name in names)]
    adaptor = InductorAdaptor()
    adaptor.initialize_cache(str(tmp_path))
    with pytest.raises(Exception, match=r".+"):
        adaptor.compile(op_graph([lambda x: x.no_such_method()]), [torch.ones(2)], {}, key="key")
    after = [codecache.compiled_fx_graph_hash, *(vars(codecache.FxGraphCache).get(name) for name in names)]
    assert after == before
    assert str(tmp_path) not in str(os.environ.get("TORCHINDUCTOR_CACHE_DIR"))


@pytest.mark.parametrize("kept", [True, False], ids=["options that are no plain data", "an entry that torch dropped"])
def test_the_old_adaptor_counts_what_it_cannot_keep_as_well(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adaptor = InductorAdaptor()
    adaptor.initialize_cache(str(tmp_path))
    if kept:
        entry = tmp_path / "inductor_cache" / "fxgraph" / "aa" / "faa"
        entry.mkdir(parents=True)
        (entry / "code").write_text("compiled")
    monkeypatch.setattr(adaptor, "_run", lambda *_: (len, "faa", False))
    options: dict[str, Any] = {"post_grad_custom_post_pass": len} if kept else {}
    with compilation_counter.expect(**{"num_compiled_artifacts_saved": 0, "cache_misses.unsaveable": 1}):
        assert adaptor.compile(op_graph([torch.relu]), [torch.ones(2)], options, key="key") == (len, None)
