"""Level 0 against an implementation that shares no line with ours: Hugging Face transformers on the same weights.

Every other comparison here is of ours with ours, and a q/k permutation read the wrong way round, a wrong rotary base
or a forgotten norm is the same on both sides of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from atom_impl.config import Config
from atom_impl.model_loader import ModelSource, load_model, resolve_model
from atom_impl.model_loader.fetch import gguf_file
from atom_impl.model_loader.parameters import POISON_ROW, layout, parts, upcast
from atom_impl.model_loader.registry import SMOLLM2
from suites.correctness.paged_driver import PagedDriver

MODEL = "smollm2-135m-instruct"
STEPS = 64
PROMPTS = (
    "The history of the steam engine begins",
    "Once upon a time, in a small village by the sea,",
    "To make bread you need flour, water and",
)
#: Relative L2 error of a position's logits. Measured over 192 positions: at most 5.5e-6 between the two, while
#: transformers is up to 4.6e-6 and this engine up to 3.1e-6 away from float64.
FLOAT32_ROUNDING = 1e-5


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return resolve_model(MODEL)


@pytest.fixture(scope="module")
def weights(source: ModelSource) -> dict[str, torch.Tensor]:
    return source.weights(torch.float32, "cpu")


@pytest.fixture(scope="module")
def peer() -> Any:
    """transformers' model, with transformers' own reading of the GGUF file: its dequantisation, names and
    permutation.
    """
    path = str(gguf_file(SMOLLM2))
    config = transformers.LlamaConfig(**load_gguf_checkpoint(path)["config"])
    with torch.device("meta"):
        skeleton = transformers.LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=skeleton)["tensors"]
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model


def engine(source: ModelSource, weights: dict[str, torch.Tensor], requests: int, max_len: int) -> PagedDriver:
    config = Config(model=source.name, hf_config=source.config, dtype=torch.float32, device="cpu")
    return PagedDriver(load_model(config, weights), config, requests=requests, max_len=max_len)


@dataclass
class Run:
    """A greedy run of one prompt: the tokens chosen and the logits that chose them, [steps, vocabulary]."""

    tokens: list[int]
    logits: torch.Tensor


@pytest.fixture(scope="module")
def prompt_ids(source: ModelSource) -> list[list[int]]:
    tokenizer = source.tokenizer()
    assert tokenizer is not None
    return [tokenizer.encode(prompt).ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def ours(source: ModelSource, weights: dict[str, torch.Tensor], prompt_ids: list[list[int]]) -> list[Run]:
    """All prompts in one batch over one paged cache: prefill, then decode."""
    driver = engine(source, weights, len(prompt_ids), max_len=max(map(len, prompt_ids)) + STEPS)
    steps = [torch.stack([logits[-1] for logits in driver.prefill(prompt_ids)])]
    while len(steps) < STEPS:
        steps.append(driver.decode(steps[-1].argmax(dim=-1).tolist()))
    return [Run(logits.argmax(dim=-1).tolist(), logits) for logits in torch.stack(steps, dim=1)]


@pytest.fixture(scope="module")
def theirs(peer: Any, prompt_ids: list[list[int]]) -> list[Run]:
    """Each prompt alone, through transformers' own cache."""
    return [greedy(peer, ids) for ids in prompt_ids]


@torch.inference_mode()
def greedy(model: Any, ids: list[int]) -> Run:
    model.generation_config = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=STEPS, pad_token_id=0, output_logits=True, return_dict_in_generate=True
    )  # without an end token, so that every run has all its steps
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64))
    return Run(out.sequences[0, len(ids) :].tolist(), torch.cat(out.logits))


def relative_error(found: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Relative L2 error of each row."""
    return (found.double() - reference.double()).norm(dim=-1) / reference.double().norm(dim=-1)


def test_the_converted_weights_equal_transformers_own_reading_of_the_file(
    source: ModelSource, weights: dict[str, torch.Tensor], peer: Any
) -> None:
    read = peer.state_dict()
    assert {part.name for part in parts(source.config)} - {POISON_ROW} == read.keys() - {"lm_head.weight"}
    for name, group in layout(source.config).items():
        rows = torch.cat([read[part.name] for part in group if part.name != POISON_ROW])
        assert torch.equal(weights[name][: rows.shape[0]], rows), f"{name} differs from transformers' reading"


def test_64_greedy_tokens_of_each_prompt_are_the_same(ours: list[Run], theirs: list[Run], source: ModelSource) -> None:
    tokenizer = source.tokenizer()
    assert tokenizer is not None
    for prompt, mine, other in zip(PROMPTS, ours, theirs, strict=True):
        assert len(mine.tokens) == STEPS
        text = f"{prompt!r}: {tokenizer.decode(mine.tokens)!r} against {tokenizer.decode(other.tokens)!r}"
        assert mine.tokens == other.tokens, text


def test_logits_agree_within_float32_rounding(ours: list[Run], theirs: list[Run]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        error = relative_error(mine.logits, other.logits)
        assert error.isfinite().all()
        assert float(error.max()) <= FLOAT32_ROUNDING


def test_we_are_as_near_to_float64_as_transformers_is(
    source: ModelSource,
    weights: dict[str, torch.Tensor],
    prompt_ids: list[list[int]],
    ours: list[Run],
    theirs: list[Run],
) -> None:
    """Teacher-forced in float64 over the same tokens; the bound of measurement.md's G3 between the two engines."""
    wide = engine(source, upcast(weights, torch.float64), len(prompt_ids), max_len=max(map(len, prompt_ids)) + STEPS)
    texts = [ids + run.tokens[:-1] for ids, run in zip(prompt_ids, ours, strict=True)]
    for ids, logits, mine, other in zip(prompt_ids, wide.prefill(texts), ours, theirs, strict=True):
        reference = logits[len(ids) - 1 :]
        assert reference.dtype == torch.float64
        found, allowed = relative_error(mine.logits, reference), relative_error(other.logits, reference)
        assert float(found.norm()) <= 2 * float(allowed.norm())


def test_a_transposed_rotary_permutation_would_be_seen(
    source: ModelSource, weights: dict[str, torch.Tensor], prompt_ids: list[list[int]], theirs: list[Run]
) -> None:
    """The control: the fault that this file exists for, in one layer of thirty, is far outside the bound."""
    name = "model.layers.7.self_attn.qkv_proj.weight"
    d, kept = source.config.head_dim, weights[name]
    pairs = kept[:d].view(2, d // 2, -1).transpose(0, 1).reshape(d, -1)
    planted = engine(source, {**weights, name: torch.cat([pairs, kept[d:]])}, len(prompt_ids), max_len=32)
    firsts = torch.stack([logits[-1] for logits in planted.prefill(prompt_ids)])
    error = relative_error(firsts, torch.stack([run.logits[0] for run in theirs]))
    assert float(error.max()) > 100 * FLOAT32_ROUNDING


# --- other members of the family, over a folder that transformers wrote --------------------------------------

_SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama_2() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES, tie_word_embeddings=False))


def llama_3() -> Any:
    config = transformers.LlamaConfig(**_SIZES, tie_word_embeddings=True, rope_parameters=_LLAMA_3_ROPE)
    return transformers.LlamaForCausalLM(config)


def qwen_3() -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_SIZES, head_dim=24, tie_word_embeddings=True))


@pytest.mark.parametrize("build", [llama_2, llama_3, qwen_3])
def test_a_folder_written_by_transformers_gives_the_same_logits(build: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)  # ones would hide a norm that is left out
            else:
                parameter.mul_(5)
    model.save_pretrained(tmp_path)
    found = resolve_model(str(tmp_path))
    driver = engine(found, found.weights(torch.float32, "cpu"), requests=2, max_len=160)
    texts = [torch.randint(0, 199, (150,)).tolist(), torch.randint(0, 199, (37,)).tolist()]
    with torch.inference_mode():
        expected = [model(torch.tensor([text])).logits[0] for text in texts]
    for mine, other in zip(driver.prefill(texts), expected, strict=True):
        assert float(relative_error(mine, other).max()) <= FLOAT32_ROUNDING
