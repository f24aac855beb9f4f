"""`@support_torch_compile` as the guide describes it, and what upstream's could not do.

It found no dynamic argument behind `from __future__ import annotations` (this file has it), ran level 2 as level 3,
saw a buffer's rebinding but not a write into it, and needed an optional package to say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from torch import nn

from atom_impl.compilation.whole_graph_backend import compile_as_is
from atom_impl.config import Config
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.decorators import TorchCompileWrapperWithCustomDispatcher, support_torch_compile
from suites.contract.toy_pieces import ToyBody, toy, toy_batch, toy_config

pytestmark = pytest.mark.usefixtures("own_cache", "inference")

IDS = torch.tensor([2, 0, 1])


class WithState(nn.Module):
    seen: Any
    table: Any

    def __init__(self, atom_config: Config, *, width: int = 4) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(width))
        self.table = nn.Parameter(torch.randn(5, width), requires_grad=False)
        self.width = width


class IntermediateTensors:
    """What one pipeline stage hands to the next; known by its name, for each engine has its own."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors


@support_torch_compile
class LaterStage(WithState):
    def forward(self, before: IntermediateTensors) -> torch.Tensor:
        return before.tensors["hidden"] * self.table[0] + before.tensors["residual"]


@support_torch_compile
class Rebinds(WithState):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        return self.table[ids] + self.seen


@support_torch_compile
class WritesInPlace(WithState):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return self.table[ids] + self.seen


@support_torch_compile
class WritesThroughAView(WithState):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.seen[1:3].view(2, 1)[0] = 7.0
        return self.table[ids] + self.seen


@support_torch_compile
class WritesItsOwnTemporaries(WithState):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table[ids]
        rows.add_(self.seen)
        out = torch.zeros_like(rows)
        torch.mul(rows, 2, out=out)
        out[0] = 1.0
        return out


@support_torch_compile
class BranchesOnData(WithState):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table[ids]
        if rows.sum().item() > 0:  # the break
            return rows * 2
        return rows


@support_torch_compile
class CallsWhatCannotBeTraced(WithState):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()  # the break
        return self.table[ids]


BREAKS = (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)


def test_level_0_never_touches_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("torch.compile was called"))
    model, batch = toy(toy_config(0)), toy_batch(3)
    before = compilation_counter.as_dict()
    assert model.do_not_compile is True
    assert torch.equal(model(*batch), model.forward(*batch))
    assert compilation_counter.as_dict() == before
    assert model.compiled_codes == []


def test_level_1_is_left_to_the_runner_which_runs_dynamo_alone() -> None:
    model, batch = toy(toy_config(1)), toy_batch(3)
    assert model.do_not_compile is True
    with compilation_counter.expect(dynamo_as_is_count=1, num_eager_compiles=1, num_inductor_compiles=0):
        assert torch.equal(compile_as_is(model)(*batch), model.forward(*batch))


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("breaks", [BranchesOnData, CallsWhatCannotBeTraced])
def test_a_graph_break_is_an_error_that_names_the_line(level: int, breaks: Any) -> None:
    model = breaks(toy_config(level))
    run = compile_as_is(model) if level == 1 else model
    with pytest.raises(BREAKS) as caught:
        run(IDS)
    text = str(caught.value)
    assert "test_decorators.py" in text
    assert "# the break" in text


def test_a_graph_break_is_counted() -> None:
    with compilation_counter.expect(graph_breaks=1), pytest.raises(BREAKS):
        BranchesOnData(toy_config(3))(IDS)


def test_level_2_compiles_the_whole_once_and_does_not_split() -> None:
    model, batch = toy(toy_config(2)), toy_batch(3)
    with compilation_counter.expect(
        num_graphs_seen=1, num_backend_compilations=1, num_eager_compiles=1, num_piecewise_graphs_seen=0
    ):
        assert torch.equal(model(*batch), model.forward(*batch))
        model(*toy_batch(1))


def test_level_3_goes_through_the_piecewise_backend() -> None:
    model, batch = toy(toy_config(3)), toy_batch(3)
    with compilation_counter.expect(
        num_models_seen=1, num_graphs_seen=1, num_piecewise_graphs_seen=9, num_piecewise_capturable_graphs_seen=5
    ):
        assert torch.equal(model(*batch), model.forward(*batch))
        model(*toy_batch(1))


def test_the_wrapper_becomes_a_base_and_the_dispatcher_starts_at_level_2() -> None:
    for level in range(4):
        model = toy(toy_config(level))
        assert isinstance(model, TorchCompileWrapperWithCustomDispatcher)
        assert model.use_custom_dispatcher is (level >= 2)
        assert model.do_not_compile is (level < 2)


def test_compiled_code_can_be_dispatched_to_directly() -> None:
    model, batch = toy(toy_config(3)), toy_batch(3)
    with pytest.raises(RuntimeError, match="code 0 of Toy does not exist"):
        model.dispatch_to_code(0)
    expected = model(*batch)
    assert len(model.compiled_codes) == 1
    assert torch.equal(model.dispatch_to_code(0)(*batch), expected)


def test_decorating_twice_changes_nothing() -> None:
    twice = support_torch_compile(Rebinds)
    assert twice is Rebinds
    assert Rebinds.__bases__.count(TorchCompileWrapperWithCustomDispatcher) == 1


def test_a_subclass_compiles_its_own_forward() -> None:
    class Doubled(WritesItsOwnTemporaries):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) * 2

    model = Doubled(toy_config())
    assert torch.equal(model(IDS), model.forward(IDS))
    assert torch.equal(model(IDS), WritesItsOwnTemporaries.forward(model, IDS) * 2)


def test_constructor_keywords_reach_the_model() -> None:
    assert WritesItsOwnTemporaries(toy_config(), width=6).width == 6
    assert WritesItsOwnTemporaries(atom_config=toy_config(), width=3).width == 3


def test_dynamic_arguments_are_found_behind_postponed_annotations() -> None:
    class Model(nn.Module):
        def forward(
            self,
            a: torch.Tensor,
            b: torch.Tensor | None,
            c: Optional[torch.Tensor],  # noqa: UP045  (a spelling that people use)
            d: int,
            e: list[torch.Tensor],
            f: Any = None,
        ) -> torch.Tensor:
            return a

    assert vars(support_torch_compile(Model))["_dynamic_arg_dims"] == {"a": [0], "b": [0], "c": [0]}


def test_dynamic_arguments_are_found_where_another_annotation_cannot_be_resolved() -> None:
    class Model(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor | None, c: NoSuchName) -> torch.Tensor:  # type: ignore[name-defined]  # noqa: F821
            return a

    assert vars(support_torch_compile(Model))["_dynamic_arg_dims"] == {"a": [0], "b": [0]}


def test_the_rows_of_intermediate_tensors_are_dynamic() -> None:
    """A later pipeline stage gets its input as named tensors, and its rows follow the step like any other's."""
    model = LaterStage(toy_config())
    assert vars(LaterStage)["_dynamic_arg_dims"] == {"before": [0]}
    for rows in (1, 3, 5):
        before = IntermediateTensors({"hidden": torch.randn(rows, 4), "residual": torch.randn(rows, 4)})
        with compilation_counter.expect(num_graphs_seen=1 if rows == 1 else 0, recompiles=0):
            assert torch.equal(model(before), model.forward(before))


def test_explicit_dimensions_win() -> None:
    class Model(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a

    assert vars(support_torch_compile(dynamic_arg_dims={"b": -1})(Model))["_dynamic_arg_dims"] == {"b": [-1]}


def test_a_class_without_forward_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"decorated class should have a forward method\."):
        support_torch_compile(type("Empty", (nn.Module,), {}))


def test_no_dynamic_argument_is_an_error_that_tells_the_way_out() -> None:
    class Model(nn.Module):
        def forward(self, rows: int) -> int:
            return rows

    with pytest.raises(ValueError, match=r"No dynamic dimensions found in .* provide dynamic_arg_dims explicitly"):
        support_torch_compile(Model)


def test_an_unknown_argument_is_an_error() -> None:
    with pytest.raises(ValueError, match="Argument x not found in the forward method"):
        support_torch_compile(dynamic_arg_dims={"x": 0})(ToyBody)


def test_a_dynamic_argument_that_is_no_tensor_is_an_error_at_the_call() -> None:
    @support_torch_compile(dynamic_arg_dims={"ids": 0})
    class Model(WithState):
        def forward(self, ids: Any) -> Any:
            return ids

    with pytest.raises(ValueError, match=r"Unsupported dynamic dimensions .* for argument ids with type .*int"):
        Model(toy_config())(3)


def test_a_dimension_that_the_tensor_has_not_is_an_error_at_the_call() -> None:
    @support_torch_compile(dynamic_arg_dims={"ids": 2})
    class Model(WithState):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return ids + 1

    with pytest.raises(ValueError, match="dynamic dimension 2 of argument ids: the tensor has 1"):
        Model(toy_config())(IDS)


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize(
    ("model", "where"),
    [
        (Rebinds, "seen"),
        (WritesInPlace, r"seen is changed by .*add_"),
        (WritesThroughAView, r"seen is changed by .*setitem"),
    ],
)
def test_a_forward_that_changes_a_buffer_is_refused_each_time(model: Any, where: str, level: int) -> None:
    made = model(toy_config(level))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=rf"buffers of nn\.Module during forward .* is not allowed.*{where}"):
            made(IDS)
    assert torch.equal(made.seen, torch.zeros(4))


def test_a_write_is_named_with_its_line() -> None:
    with pytest.raises(RuntimeError, match=r"test_decorators\.py.*self\.seen\.add_\(1\)"):
        WritesInPlace(toy_config())(IDS)


@pytest.mark.parametrize("model", [Rebinds, WritesInPlace, WritesThroughAView])
def test_without_graphs_a_buffer_may_be_changed(model: Any) -> None:
    compiled, plain = model(toy_config(use_cudagraph=False)), model(toy_config(0))
    plain.table.copy_(compiled.table)
    for _ in range(3):
        assert torch.equal(compiled(IDS), plain(IDS))
    assert torch.equal(compiled.seen, plain.seen)


def test_a_forward_may_write_its_own_temporaries() -> None:
    model = WritesItsOwnTemporaries(toy_config())
    assert torch.equal(model(IDS), model.forward(IDS))


def test_the_debug_path_gets_the_traced_graph_and_the_compiled_code(tmp_path: Path) -> None:
    model = toy(toy_config(3, debug_dump_path=str(tmp_path / "not" / "there" / "yet")), layers=1)
    model(*toy_batch(2))
    files = {path.name: path.read_text() for path in (tmp_path / "not/there/yet/rank_0").iterdir()}
    assert "toy_mix" in files["Toy_graph.py"]
    assert "__compiled_fn" in files["transformed_code.py"]


def test_a_second_models_dump_does_not_replace_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        toy(toy_config(3, debug_dump_path=str(tmp_path)), layers=1)(*toy_batch(2))
    names = sorted(path.name for path in (tmp_path / "rank_0").iterdir())
    assert names == ["Toy_graph.py", "Toy_graph_1.py", "transformed_code.py", "transformed_code_1.py"]
