"""The tokenizer inside a GGUF file, rebuilt: vocabulary and merges are data, but the splitting rule is only a name.

Prompts tokenised by another rule look right and are other prompts, so a rule that is not known here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CONTROL, _USER_DEFINED = 3, 4  # GGUF's token types


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


#: Splitting rules by the name in `tokenizer.ggml.pre`.
SPLIT_RULES: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"smollm": _smollm, "gpt-2": _gpt2, "gpt2": _gpt2}


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """A byte-level BPE tokenizer from GGUF metadata; ValueError for another kind or splitting rule."""
    kind, rule = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or rule not in SPLIT_RULES:
        raise ValueError(
            f"tokenizer {kind!r} with splitting rule {rule!r} is not known; there is 'gpt2' with "
            f"{', '.join(SPLIT_RULES)}: use the model's own tokenizer.json"
        )
    tokens = fields["tokenizer.ggml.tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
    tokenizer.pre_tokenizer = SPLIT_RULES[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    types = fields.get("tokenizer.ggml.token_type", [])
    special = [token for token, kind in zip(tokens, types, strict=False) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    added = [token for token, kind in zip(tokens, types, strict=False) if kind == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    return tokenizer
