"""A second function registered under a taken name was never called, and nothing said so.

Also guarded: an operator without a CPU kernel cannot run on a laptop, one without a fake cannot be traced, and one
whose schema leaves out a write is reordered by the compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.library import Library, opcheck

import atom_impl.model_ops.attention  # noqa: F401  (registers the engine's operator)
from atom_impl.device.software.bodies import BODIES
from atom_impl.utils.custom_register import (
    SPLIT_MARK,
    aiter_lib,
    direct_register_custom_op,
    mark_spliting_op,
    registered_ops,
)
from atom_impl.utils.forward_context import Context, reset_forward_context, set_forward_context
from suites.contract import toy_pieces

X = torch.arange(6.0).reshape(2, 3)


def scaled_copy(x: torch.Tensor, out: torch.Tensor, factor: float, name: str) -> None:
    out.copy_(x * factor)


def doubled(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return x * 2 if bias is None else x * 2 + bias


def doubled_fake(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.empty_like(x)


@contextmanager
def warm_up_context() -> Iterator[None]:
    """A step before any KV cache is bound: attention then writes zeros."""
    set_forward_context({}, toy_pieces.toy_config(level=0), Context(positions=torch.arange(3)))
    try:
        yield
    finally:
        reset_forward_context()


@pytest.fixture
def library() -> Iterator[Library]:
    """A namespace of the test's own, whose operators go when it does."""
    made = Library("contract_register", "FRAGMENT")
    yield made
    made._destroy()


def test_ops_land_in_the_namespace_of_the_guide() -> None:
    assert aiter_lib.ns == "aiter"
    overload = direct_register_custom_op("contract_scaled_copy", scaled_copy, mutates_args=["out"])
    assert overload is torch.ops.aiter.contract_scaled_copy.default
    assert registered_ops()["aiter::contract_scaled_copy"].op_func is scaled_copy


def test_the_schema_comes_from_the_annotations(library: Library) -> None:
    overload = direct_register_custom_op("schema", scaled_copy, ["out"], target_lib=library)
    assert str(overload._schema) == "contract_register::schema(Tensor x, Tensor(a1!) out, float factor, str name) -> ()"


def test_the_tags_reach_the_op(library: Library) -> None:
    fixed = torch.Tag.needs_fixed_stride_order
    overload = direct_register_custom_op("tagged", doubled, [], doubled_fake, library, tags=(fixed,))
    assert fixed in overload.tags
    assert fixed not in direct_register_custom_op("untagged", doubled, [], doubled_fake, library).tags


def test_an_op_declared_for_the_gpu_runs_on_the_cpu(library: Library) -> None:
    direct_register_custom_op("copy", scaled_copy, ["out"], target_lib=library)
    out = torch.zeros_like(X)
    torch.ops.contract_register.copy(X, out, 3.0, "layer")
    assert torch.equal(out, X * 3)


def test_a_composite_key_is_registered_alone(library: Library) -> None:
    direct_register_custom_op(
        "composite", doubled, [], doubled_fake, target_lib=library, dispatch_key="CompositeExplicitAutograd"
    )
    assert torch.equal(torch.ops.contract_register.composite(X), X * 2)


def test_the_fake_is_used_in_tracing_and_the_body_is_not(library: Library) -> None:
    direct_register_custom_op("fake", doubled, [], doubled_fake, target_lib=library)
    assert torch.ops.contract_register.fake(X.to("meta")).shape == X.shape


def test_an_op_that_returns_nothing_needs_no_fake(library: Library) -> None:
    direct_register_custom_op("void", scaled_copy, ["out"], target_lib=library)
    assert torch.ops.contract_register.void(X.to("meta"), X.to("meta"), 1.0, "layer") is None


def test_the_same_function_twice_is_harmless(library: Library) -> None:
    first = direct_register_custom_op("twice", doubled, [], doubled_fake, target_lib=library)
    assert direct_register_custom_op("twice", doubled, [], doubled_fake, target_lib=library) is first


def test_reloading_a_module_registers_nothing_new_and_raises_nothing() -> None:
    before = torch.ops.aiter.toy_mix.default
    importlib.reload(toy_pieces)
    assert torch.ops.aiter.toy_mix.default is before


def test_two_functions_under_one_name_raise_and_both_are_named(library: Library) -> None:
    direct_register_custom_op("taken", doubled, [], doubled_fake, target_lib=library)
    with pytest.raises(ValueError, match=r"contract_register::taken is already registered for .*doubled.*scaled_copy"):
        direct_register_custom_op("taken", scaled_copy, ["out"], target_lib=library)
    assert torch.equal(torch.ops.contract_register.taken(X), X * 2)


def test_two_closures_of_one_function_are_two_functions(library: Library) -> None:
    def times(factor: float) -> object:
        def body(x: torch.Tensor) -> torch.Tensor:
            return x * factor

        return body

    direct_register_custom_op("closure", times(2.0), [], target_lib=library)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="already registered"):
        direct_register_custom_op("closure", times(3.0), [], target_lib=library)  # type: ignore[arg-type]


def test_a_name_that_another_library_defined_is_refused(library: Library) -> None:
    other = Library("contract_register", "FRAGMENT")
    other.define("foreign(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match="already exists in another library"):
        direct_register_custom_op("foreign", doubled, [], target_lib=library)
    other._destroy()


def test_a_mutated_argument_that_does_not_exist_is_refused_and_leaves_no_op_behind(library: Library) -> None:
    with pytest.raises(ValueError, match="oot"):
        direct_register_custom_op("typo", scaled_copy, ["oot"], target_lib=library)
    direct_register_custom_op("typo", scaled_copy, ["out"], target_lib=library)


def test_a_dropped_library_frees_its_names() -> None:
    first = Library("contract_dropped", "FRAGMENT")
    direct_register_custom_op("op", doubled, [], doubled_fake, target_lib=first)
    first._destroy()
    second = Library("contract_dropped", "FRAGMENT")
    direct_register_custom_op("op", scaled_copy, ["out"], target_lib=second)
    second._destroy()


def test_a_recording_can_enter_the_python_body() -> None:
    overload = direct_register_custom_op("contract_scaled_copy", scaled_copy, mutates_args=["out"])
    assert BODIES[overload] is scaled_copy


def test_a_marked_op_carries_the_mark_on_packet_overload_and_function() -> None:
    @mark_spliting_op(is_custom=True, gen_fake=doubled_fake)
    def contract_marked(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return doubled(x, bias)

    packet = torch.ops.aiter.contract_marked
    assert all(getattr(held, SPLIT_MARK) is True for held in (packet, packet.default, contract_marked))
    assert torch.equal(packet(X), X * 2)
    assert torch.equal(contract_marked(X), X * 2)


def test_marking_a_function_that_is_no_custom_op_registers_nothing() -> None:
    before = set(registered_ops())
    marked = mark_spliting_op(is_custom=False)(doubled)
    assert marked is doubled
    assert getattr(doubled, SPLIT_MARK) is True
    assert set(registered_ops()) == before


def attention_sample() -> tuple[object, ...]:
    q, k, v = torch.randn(3, 4, 8), torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    return q, k, v, torch.empty_like(q), "model.layers.0.self_attn.attn"


SAMPLES: dict[str, Callable[[], tuple[object, ...]]] = {
    "aiter::toy_mix": lambda: (torch.randn(3, 4), torch.randn(3, 4), torch.empty(3, 4), "layer.0"),
    "aiter::unified_attention_with_output": attention_sample,
}


def test_every_op_of_the_engine_has_a_sample_and_passes_opcheck() -> None:
    """Schema, fake, autograd registration, and tracing with dynamic sizes, each against the real kernel."""
    own = {name for name, op in registered_ops().items() if op.op_func.__module__.startswith("atom_impl.")}
    assert own <= set(SAMPLES), f"add a sample for {sorted(own - set(SAMPLES))}"
    with warm_up_context():
        for name, sample in SAMPLES.items():
            opcheck(registered_ops()[name].overload, sample())


def test_an_op_that_writes_what_its_schema_does_not_declare_fails_opcheck(library: Library) -> None:
    overload = direct_register_custom_op("undeclared", scaled_copy, [], target_lib=library)
    with pytest.raises(Exception, match=r"out|mutat"):
        opcheck(overload, (torch.randn(2, 3), torch.zeros(2, 3), 2.0, "layer"), test_utils="test_schema")
