"""The model around attention: nothing of a step is kept, and no row sees another one's padding.

A forward that branched on one row, read a position table or wrote a buffer was right when traced and wrong a step
later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from atom_impl.config import Config
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.model_ops.norm import RMSNorm
from atom_impl.model_ops.rotary import RotaryEmbedding, apply_rotary, inverse_frequencies
from atom_impl.models import ARCHITECTURES, model_class
from atom_impl.utils.forward_context import AttentionMetaData, Context, forward_context
from suites.correctness.paged_driver import PagedDriver

MODELS = ["random:tiny-llama", "random:tiny-qwen3"]
BLOCK = 16


def built(name: str, *, dtype: torch.dtype = torch.float32, poison: bool = False) -> tuple[nn.Module, Config]:
    source = resolve_model(name)
    config = Config(model=name, hf_config=source.config, dtype=dtype, device="cpu", pad_poison_row=poison)
    return load_model(config), config


def decode_hidden(
    model: Any, config: Config, ids: Sequence[int], positions: Sequence[int], live: int
) -> tuple[torch.Tensor, dict[str, KVCacheTensor]]:
    """One decode step over zeroed caches; request i owns block i. Rows from `live` on are padding."""
    driver = PagedDriver(model, config, requests=len(ids), max_len=BLOCK)
    where = torch.tensor(positions)
    table = driver.tables[:, :1]
    slots = (table[:, 0] * BLOCK + where.clamp(0, BLOCK - 1)).to(torch.int64)
    slots[live:] = -1
    lens = (where + 1).to(torch.int32)
    meta = AttentionMetaData(lens, slots, lens, table, torch.tensor([live], dtype=torch.int32))
    with torch.inference_mode(), forward_context(meta, config, Context(where), kv_cache_data=driver.kv):
        return model(torch.tensor(ids), where), driver.kv


@pytest.mark.parametrize("name", MODELS)
def test_live_rows_keep_their_bits_when_pad_rows_hidden_state_is_nan(name: str) -> None:
    model, config = built(name, poison=True)
    poison = resolve_model(name).config.vocab_size
    clean, kv = decode_hidden(model, config, [5, 9, 0, 0], [3, 0, 0, 0], live=2)
    dirty, dirty_kv = decode_hidden(model, config, [5, 9, poison, poison], [3, 0, 2**31 - 2, 7], live=2)
    assert dirty[2:].isnan().all()
    assert torch.equal(dirty[:2], clean[:2])
    for layer, cache in kv.items():
        assert torch.equal(cache.k_cache[:-1], dirty_kv[layer].k_cache[:-1])


def test_the_poison_row_is_outside_the_lm_head() -> None:
    for name in MODELS:
        model, _ = built(name, poison=True)
        vocabulary = resolve_model(name).config.vocab_size
        logits = model.compute_logits(torch.ones(1, resolve_model(name).config.hidden_size))  # type: ignore[operator]
        assert logits.shape == (1, vocabulary)
        assert logits.isfinite().all()
        assert model.get_parameter("model.embed_tokens.weight").shape[0] == vocabulary + 1


def test_without_the_poison_row_an_id_outside_the_vocabulary_raises() -> None:
    model, config = built("random:tiny-llama")
    with pytest.raises(IndexError):
        decode_hidden(model, config, [256], [0], live=1)


def test_a_forward_changes_no_parameter_and_no_buffer() -> None:
    model, config = built("random:tiny-llama")
    before = {name: tensor.clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    decode_hidden(model, config, [5, 9], [3, 0], live=2)
    after = dict([*model.named_parameters(), *model.named_buffers()])
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize("name", MODELS)
def test_one_trace_serves_every_number_of_rows(name: str) -> None:
    """Without a graph break or a second trace: rows are a symbol, and nothing else of a step is in the code."""
    model, config = built(name)
    inner = model.model
    compiles = 0

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        nonlocal compiles
        compiles += 1
        targets = [str(node.target) for node in graph.graph.nodes if "unified_attention" in str(node.target)]
        assert len(targets) == 2
        return graph

    class Traced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            torch._check(ids.shape[0] == positions.shape[0])
            hidden: torch.Tensor = self.inner.forward(ids, positions)  # type: ignore[union-attr,operator]
            return hidden

    traced = torch.compile(Traced(), backend=backend, fullgraph=True, dynamic=True)
    for rows in (3, 5, 2, 8):
        ids, positions = list(range(rows)), [row % BLOCK for row in range(rows)]
        expected, _ = decode_hidden(model, config, ids, positions, live=rows - 1)
        found, _ = decode_hidden(traced, config, ids, positions, live=rows - 1)
        assert torch.equal(found, expected)
    assert compiles == 1


def test_prompt_chunks_and_decode_reach_the_same_logits_as_one_prefill() -> None:
    model, config = built("random:tiny-llama?layers=3", dtype=torch.float64)
    text = torch.randint(0, 256, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    whole = PagedDriver(model, config, requests=1, max_len=48).prefill([text])[0]
    driver = PagedDriver(model, config, requests=1, max_len=48, seed=7)
    pieces = [*driver.prefill([text[:17]]), *driver.prefill([text[17:33]])]
    pieces += [driver.decode([token]) for token in text[33:]]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-11, atol=1e-11)


# --- the parts -----------------------------------------------------------------------------------------------


def test_a_bfloat16_norm_squares_in_float32() -> None:
    norm = RMSNorm(4096, 1e-5)
    norm.weight.data = torch.rand(4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = (torch.randn(3, 4096, generator=torch.Generator().manual_seed(1)) * 30).bfloat16()
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    found = norm(x)
    assert found.dtype == torch.bfloat16
    assert (
        float(((found.double() - expected) / expected).abs().max()) <= 2**-8
    )  # half a unit in the last place, no more


@pytest.mark.parametrize("position", [0, 1, 77, 8191])
def test_rotation_turns_each_pair_by_its_own_angle(position: int) -> None:
    d, theta = 8, 10000.0
    x = torch.randn(1, 1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.set_default_dtype(torch.float64)
    try:
        rotary = RotaryEmbedding(d, theta)
    finally:
        torch.set_default_dtype(torch.float32)
    found = apply_rotary(x, *rotary(torch.tensor([position])))[0, 0]
    for pair in range(d // 2):
        turned = complex(x[0, 0, pair], x[0, 0, pair + d // 2]) * complex(
            math.cos(position * theta ** (-2 * pair / d)), math.sin(position * theta ** (-2 * pair / d))
        )
        assert abs(complex(found[pair], found[pair + d // 2]) - turned) < 1e-12


@pytest.mark.parametrize("position", [-1, 2**31 - 1, 2**40])
def test_a_pad_rows_position_may_be_any_number(position: int) -> None:
    cos, sin = RotaryEmbedding(8, 10000.0)(torch.tensor([0, position]))
    assert cos.isfinite().all()
    assert sin.isfinite().all()


def test_linear_scaling_stretches_all_wavelengths_alike() -> None:
    plain = inverse_frequencies(16, 10000.0)
    assert torch.equal(inverse_frequencies(16, 10000.0, {"rope_type": "linear", "factor": 4.0}), plain / 4)


def test_an_unknown_rope_scaling_is_refused() -> None:
    with pytest.raises(
        ValueError, match="rope_scaling of type 'yarn' is not known; there are default, linear and llama3"
    ):
        inverse_frequencies(16, 10000.0, {"rope_type": "yarn", "factor": 4.0})


def test_an_unknown_architecture_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="no model for architecture 'MambaForCausalLM'; there are LlamaForCausalLM"):
        model_class("MambaForCausalLM")
    assert all(issubclass(model_class(name), nn.Module) for name in ARCHITECTURES)
