"""Guard-free code computes on whatever it is given.

Reported kinds: bucket 1 ran code that was traced for two rows and more; a mask was ignored because the first call had
none; an exception left every instance of a class with one instance's code; a changed attribute changed nothing.
"""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from atom_impl.compilation.call_signature import SignatureMismatch
from atom_impl.config import CompilationConfig, Config
from atom_impl.models.llama import LlamaForCausalLM
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.decorators import support_torch_compile
from atom_impl.utils.forward_context import Context, reset_forward_context, set_forward_context
from suites.contract import toy_pieces
from suites.contract.small_model import small_model
from suites.contract.toy_pieces import VOCAB, toy, toy_batch, toy_config

pytestmark = pytest.mark.usefixtures("own_cache", "inference")

EDGES = (0, 1, 2, 3, 7, 64)


class Lookup(nn.Module):
    def __init__(self, atom_config: Config) -> None:
        super().__init__()
        self.table: Any = nn.Parameter(torch.randn(VOCAB, 4), requires_grad=False)
        self.scale = 2.0


@support_torch_compile
class Masked(Lookup):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None, *, factor: float = 1.0) -> torch.Tensor:
        rows = self.table[ids] * self.scale * factor
        return rows if mask is None else rows * mask[:, None]


@support_torch_compile
class BranchOnOne(Lookup):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table[ids]
        return rows * 3 if rows.shape[0] == 1 else rows


@support_torch_compile
class SqueezesRows(Lookup):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table[ids].squeeze()


@support_torch_compile
class Reshapes(Lookup):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        heads = self.table[ids].view(-1, 2, 2).transpose(0, 1)
        return heads.reshape(2, -1).t().reshape(ids.shape[0], 4).contiguous()


@support_torch_compile
class TwoBatches(Lookup):
    def forward(self, ids: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return self.table[ids].sum(0) + self.table[others].sum(0)


@support_torch_compile(dynamic_arg_dims={"positions": -1})
class Columns(Lookup):
    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return positions.float().sum(0) * self.scale


IDS = torch.tensor([3, 1, 2, 0])


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("first", EDGES)
def test_every_row_count_is_right_whatever_was_traced_first(level: int, first: int) -> None:
    model = toy(toy_config(level), layers=1)
    with compilation_counter.expect(num_graphs_seen=1, num_models_seen=1):
        for rows in (first, *EDGES):
            batch = toy_batch(rows, seed=rows)
            assert torch.equal(model(*batch), model.forward(*batch)), f"{rows} rows after a first call with {first}"


def test_a_batch_without_rows_runs_uncompiled_and_is_counted() -> None:
    """Inductor's launches on a GPU divide by the number of rows."""
    model = toy(toy_config(), layers=1)
    with compilation_counter.expect(num_empty_calls=2):
        for rows in (0, 3, 0):
            assert model(*toy_batch(rows)).shape == (rows, toy_pieces.HIDDEN)


def test_the_first_call_changes_nothing_about_the_callers_tensors() -> None:
    model, (ids, positions) = toy(toy_config(), layers=1), toy_batch(1)
    model(ids, positions)
    assert not hasattr(ids, "_dynamo_dynamic_indices")
    assert torch.equal(positions, torch.arange(1))


def test_a_branch_on_one_row_raises_and_names_its_line_instead_of_computing() -> None:
    model = BranchOnOne(toy_config())
    assert torch.equal(model(IDS), model.forward(IDS))
    with pytest.raises(SignatureMismatch, match=r"ids dim 0 = 1 .*test_guard_free_dispatch\.py"):
        model(IDS[:1])
    assert torch.equal(model(IDS[:3]), model.forward(IDS[:3]))


def test_an_operation_that_drops_a_row_dimension_of_one_raises_at_one_row() -> None:
    model = SqueezesRows(toy_config())
    assert torch.equal(model(IDS), model.forward(IDS))
    with pytest.raises(SignatureMismatch, match=r"ids dim 0 = 1"):
        model(IDS[:1])


@pytest.mark.parametrize("level", [2, 3])
def test_strides_that_depend_on_there_being_two_rows_do_not_refuse_one(level: int) -> None:
    model = Reshapes(toy_config(level))
    for rows in (4, 1, 0, 2):
        assert torch.equal(model(IDS[:rows]), model.forward(IDS[:rows]))


def test_a_model_of_the_engine_runs_at_one_row_under_inductor() -> None:
    """Inductor's own layout decisions refused one row to a decoder that was right at it."""
    compilation = CompilationConfig(level=3)
    config = Config(
        hf_config=small_model(num_hidden_layers=1), device="cpu", dtype=torch.float32, compilation_config=compilation
    )
    torch.manual_seed(3)
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.normal_(0, 0.05)
    set_forward_context({}, config, Context(positions=torch.arange(4)))
    try:
        for rows in (4, 1, 3):
            ids, positions = torch.arange(rows) + 7, torch.arange(rows)
            torch.testing.assert_close(model(ids, positions), model.model.forward(ids, positions))
    finally:
        reset_forward_context()


def test_sizes_that_were_one_when_traced_must_stay_equal() -> None:
    model, (ids, positions) = toy(toy_config(), layers=1), toy_batch(4)
    model(ids, positions)
    with pytest.raises(SignatureMismatch, match=r"ids dim 0 = 4.* positions dim 0 = 3|input_ids dim 0 = 4"):
        model(ids, positions[:3])


def test_independent_sizes_stay_independent_even_when_the_first_call_had_them_equal() -> None:
    model = TwoBatches(toy_config())
    model(IDS, IDS)
    assert torch.allclose(model(IDS, IDS[:1]), model.forward(IDS, IDS[:1]))


def test_unequal_sizes_with_one_of_them_one_cannot_be_traced_and_the_way_out_is_named() -> None:
    model = TwoBatches(toy_config())
    with pytest.raises(ValueError, match=r"sizes \[1, 4\].*first call with sizes of at least 2"):
        model(IDS, IDS[:1])
    assert torch.allclose(model(IDS, IDS[:2]), model.forward(IDS, IDS[:2]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model(IDS.int()), "dtype was torch.int64"),
        (lambda model: model(IDS[None]), "rank was 1 .* is 2"),
        (lambda model: model(IDS, torch.ones(4)), "mask was None .* is a tensor"),
        (lambda model: model(IDS, factor=2.0), r"factor was 1\.0 .* is 2\.0"),
        (lambda model: model(None), "a tensor .* is None"),
        (lambda model: model(IDS[::2]), "stride"),
    ],
    ids=["dtype", "rank", "mask", "factor", "None", "stride"],
)
def test_another_kind_of_argument_raises_instead_of_computing(call: Any, message: str) -> None:
    model: Any = Masked(toy_config())
    model(IDS)
    with pytest.raises(SignatureMismatch, match=message):
        call(model)
    assert torch.equal(model(IDS), model.forward(IDS))


def test_a_mask_that_was_traced_may_not_be_left_out() -> None:
    model: Any = Masked(toy_config())
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert torch.equal(model(IDS, mask), model.forward(IDS, mask))
    assert torch.equal(model(mask=mask, ids=IDS), model.forward(IDS, mask))
    with pytest.raises(SignatureMismatch, match="mask"):
        model(IDS)


def test_a_changed_attribute_raises_and_is_named_and_restoring_it_is_enough() -> None:
    model, batch = toy(toy_config()), toy_batch(3)
    expected = model(*batch)
    assert model._dispatch.baked_values >= 8  # scale and layer_name of four layers
    model.layers[2].scale = 0.25
    with pytest.raises(SignatureMismatch, match=r"'2'\]\.scale was 0\.5 .* is 0\.25 now"):
        model(*batch)
    model.layers[2].scale = 0.5
    assert torch.equal(model(*batch), expected)
    del model.layers[2].layer_name
    with pytest.raises(SignatureMismatch, match=r"layer_name .* is gone"):
        model(*batch)


def test_new_values_in_the_weights_are_used() -> None:
    model: Any = Masked(toy_config())
    model(IDS)
    model.table.add_(1.0)
    assert torch.equal(model(IDS), model.forward(IDS))
    model.table = nn.Parameter(torch.zeros(VOCAB, 4), requires_grad=False)
    assert torch.equal(model(IDS), torch.zeros(4, 4))


def test_autocast_that_the_trace_did_not_have_raises() -> None:
    model: Any = Masked(toy_config())
    model(IDS)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(SignatureMismatch, match="autocast was off"):
        model(IDS)


def test_a_dynamic_last_dimension_keeps_its_layout() -> None:
    model = Columns(toy_config())
    staging = torch.arange(30).reshape(3, 10)
    for columns in (4, 1, 10):
        view = staging[:, :columns]
        assert torch.equal(model(view), model.forward(view))
    with pytest.raises(SignatureMismatch, match="stride"):
        model(staging[:, :4].contiguous())


def test_instances_have_their_own_code_and_the_class_keeps_its_own() -> None:
    original = toy_pieces.Toy.forward.__code__
    models: list[Any] = [toy_pieces.Toy(toy_config(), layers=1, scale=float(number)) for number in range(12)]
    batch = toy_batch(3)
    for model in models:
        assert torch.equal(model(*batch), model.forward(*batch))
    assert len({id(model.compiled_codes[0]) for model in models}) == 12
    assert toy_pieces.Toy.forward.__code__ is original


def test_a_thread_is_not_taken_for_traced_while_another_one_compiles() -> None:
    """torch's flag is one for the process: a step that met it ran eagerly, and nothing said so."""
    model: Any = toy_pieces.Toy(toy_config(), layers=1)
    batch = toy_batch(5)
    flag = "_is_compiling_flag"
    with pytest.MonkeyPatch.context() as patched, compilation_counter.expect(num_models_seen=1):
        patched.setattr(torch.compiler, flag, True)
        assert torch.compiler.is_compiling()
        with torch.inference_mode():
            assert torch.equal(model(*batch), model.forward(*batch))
    assert len(model.compiled_codes) == 1


def test_threads_run_their_own_instances_and_share_one() -> None:
    models: list[Any] = [toy_pieces.Toy(toy_config(), layers=1, scale=float(number)) for number in range(3)]
    batch = toy_batch(5)
    expected = [model.forward(*batch) for model in models]
    wrong: list[int] = []
    start = threading.Barrier(6)

    def run(number: int) -> None:
        start.wait()
        with torch.inference_mode():
            wrong.extend(number for _ in range(30) if not torch.equal(models[number](*batch), expected[number]))

    with compilation_counter.expect(num_models_seen=3):
        threads = [threading.Thread(target=run, args=(index % 3,)) for index in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_forward_that_raises_leaves_every_instance_as_it_was() -> None:
    first, second = Masked(toy_config()), Masked(toy_config())
    first(IDS)
    second(IDS)
    with pytest.raises((IndexError, RuntimeError)):
        first(torch.tensor([VOCAB + 5, 0]))
    assert torch.equal(first(IDS), first.forward(IDS))
    assert torch.equal(second(IDS), second.forward(IDS))


def test_a_trace_that_fails_is_tried_again() -> None:
    model: Any = Masked(toy_config())
    with pytest.raises(Exception, match=r"mask|size|shape|dim"):
        model(IDS, torch.ones(4, 4, 4))
    assert torch.equal(model(IDS), model.forward(IDS))


def test_instances_are_collected_with_what_was_compiled_for_them() -> None:
    model: Any = Masked(toy_config())
    model(IDS)
    names = [name for name in model.compiled_codes[0].co_names if name.startswith("__compiled_fn")]
    held = [weakref.ref(model), weakref.ref(model._dispatch)]
    del model
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    assert names
    assert all(globals().get(name) is None for name in names)


def test_no_bytecode_hook_is_left_behind() -> None:
    from torch._dynamo.convert_frame import _bytecode_hooks

    before = len(_bytecode_hooks)
    Masked(toy_config())(IDS)
    assert len(_bytecode_hooks) == before


def test_a_copied_instance_compiles_its_own_code() -> None:
    model: Any = Masked(toy_config())
    model(IDS)
    twin = copy.deepcopy(model)
    twin.scale = 5.0
    assert torch.equal(twin(IDS), twin.forward(IDS))
    assert torch.equal(model(IDS), model.forward(IDS))


def test_steady_state_compiles_nothing_also_after_a_reset_of_dynamo() -> None:
    model, batch = toy(toy_config(), layers=1), toy_batch(3)
    expected = model(*batch)
    with torch.compiler.set_stance("fail_on_recompile"), compilation_counter.expect(num_graphs_seen=0):
        for rows in EDGES:
            model(*toy_batch(rows))
    torch._dynamo.reset()
    assert torch.equal(model(*batch), expected)


def test_a_compiled_caller_inlines_the_plain_forward() -> None:
    model: Any = Masked(toy_config())
    outer = torch.compile(lambda ids: model(ids) + 1, backend="eager", fullgraph=True)
    assert torch.equal(outer(IDS), model.forward(IDS) + 1)


def test_debug_mode_names_the_dropped_guard_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOM_CHECK_GUARDS", "1")
    model: Any = Masked(toy_config())
    for rows in (4, 1, 0, 3):
        assert torch.equal(model(IDS[:rows]), model.forward(IDS[:rows]))
    model._parameters["table"] = nn.Parameter(torch.zeros(VOCAB, 4, dtype=torch.float64), requires_grad=False)
    with pytest.raises(SignatureMismatch, match=r"guard that was dropped fails: .*table"):
        model(IDS)
