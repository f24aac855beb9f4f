"""An attention operator that answers without a live step gives zeros, another layer's cache, or a traced step's."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import pytest
import torch

from atom_impl.config import Config
from atom_impl.model_ops.attention import Attention
from atom_impl.model_ops.attention import unified_attention_with_output as operator_body
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.utils.forward_context import Context, ForwardContext, forward_context, reset_forward_context
from suites.correctness.attention_steps import DIM, HEADS, KV_HEADS, Step, bits


@pytest.fixture
def layer() -> tuple[Config, Attention]:
    config = Config(dtype=torch.float32, device="cpu")
    return config, Attention(
        config, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, layer_name="model.layers.0.attn"
    )


def live_context(config: Config, step: Step, kv: dict[str, KVCacheTensor]) -> AbstractContextManager[ForwardContext]:
    context = Context(torch.zeros(1, dtype=torch.int64), running_bs=len(step.lens), running_tokens=step.q.shape[0])
    return forward_context(step.metadata(), config, context, kv_cache_data=kv)


def test_the_operator_reads_the_live_context_each_time_it_runs(layer: tuple[Config, Attention]) -> None:
    config, attention = layer
    for lengths in ([1, 16], [5, 9]):
        step, twin = Step(lengths, pad=1), Step(lengths, pad=1)
        with live_context(config, step, {attention.layer_name: step.kv}):
            out = attention(step.q, step.k, step.v)
        assert torch.equal(bits(out), bits(twin.run()))


def test_the_operator_declares_what_it_changes_and_has_a_fake(layer: tuple[Config, Attention]) -> None:
    config, attention = layer
    step = Step([5, 9], pad=1)
    arguments = (step.q, step.k, step.v, torch.full_like(step.q, math.nan), attention.layer_name)
    with live_context(config, step, {attention.layer_name: step.kv}):
        result = torch.library.opcheck(torch.ops.aiter.unified_attention_with_output.default, arguments)
    assert set(result.values()) == {"SUCCESS"}


def test_the_operators_body_is_an_eager_region() -> None:
    assert getattr(operator_body, "__eager_region__", False)


def test_a_dummy_run_before_any_cache_is_bound_gives_zeros(layer: tuple[Config, Attention]) -> None:
    config, attention = layer
    step = Step([5, 9])
    with live_context(config, step, {}):
        out = attention(step.q, step.k, step.v)
    assert out.shape == step.q.shape
    assert torch.equal(out, torch.zeros_like(step.q))


def test_attention_outside_a_step_raises_instead_of_giving_zeros(layer: tuple[Config, Attention]) -> None:
    step = Step([5])
    reset_forward_context()
    with pytest.raises(RuntimeError, match=r"without attention metadata.*set_forward_context"):
        layer[1](step.q, step.k, step.v)


def test_a_layer_without_a_cache_in_the_context_is_named(layer: tuple[Config, Attention]) -> None:
    config, attention = layer
    step = Step([5])
    with (
        live_context(config, step, {"another": step.kv}),
        pytest.raises(LookupError, match=r"'model\.layers\.0\.attn' is not a layer with a KV cache"),
    ):
        attention(step.q, step.k, step.v)


def test_a_second_model_over_one_config_is_refused(layer: tuple[Config, Attention]) -> None:
    with pytest.raises(ValueError, match="registered already; build each model over a Config of its own"):
        Attention(layer[0], num_heads=4, num_kv_heads=2, head_dim=16, layer_name="model.layers.0.attn")


def test_heads_that_do_not_divide_into_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="5 heads do not divide into groups of 2"):
        Attention(Config(device="cpu"), num_heads=5, num_kv_heads=2, head_dim=16, layer_name="a")
