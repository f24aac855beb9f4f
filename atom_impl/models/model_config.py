"""The shape of a model: what its code and its compiled pieces depend on.

Two sizes of one architecture once shared a compile cache, because the cache's identity held no model sizes, and loaded
each other's code. These fields are that identity.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from atom_impl.utils.checks import check_flag, check_positive_int

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
_COPY_IT = "copy the value from the model's config.json"


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's sizes, in the names of Hugging Face's `config.json`. Impossible values raise `ValueError`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    qk_norm: bool = False
    rope_scaling: dict[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.architecture, str) or not self.architecture:
            raise ValueError(f"architecture {self.architecture!r}: must be a name, such as 'LlamaForCausalLM'")
        for name in _SIZES:
            check_positive_int(name, getattr(self, name), _COPY_IT)
        for name in ("rms_norm_eps", "rope_theta"):
            _check_positive_number(name, getattr(self, name))
        for name in ("tie_word_embeddings", "qk_norm"):
            check_flag(name, getattr(self, name))
        self._check_heads()
        # Copies, because a caller's dict or list usually belongs to a parsed file that others edit.
        object.__setattr__(self, "rope_scaling", _checked_rope_scaling(self.rope_scaling))
        object.__setattr__(self, "bos_token_id", _checked_token_id("bos_token_id", self.bos_token_id, self.vocab_size))
        object.__setattr__(self, "eos_token_id", _checked_token_ids("eos_token_id", self.eos_token_id, self.vocab_size))

    def identity(self) -> dict[str, Any]:
        """What generated code may depend on. Special token ids are left out: no kernel sees them."""
        return {name: value for name, value in asdict(self).items() if name not in ("bos_token_id", "eos_token_id")}

    def _check_heads(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads {self.num_key_value_heads}: must divide num_attention_heads "
                f"({self.num_attention_heads}), so that every query head has one KV head; {_COPY_IT}"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim {self.head_dim}: must be even, because rotary embedding turns pairs; {_COPY_IT}"
            )


def _check_positive_number(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{field} {value!r}: must be a finite number above 0; {_COPY_IT}")


def _checked_rope_scaling(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("rope_type", value.get("type")), str):
        raise ValueError(f"rope_scaling {value!r}: must be a dict with a 'rope_type' name; leave it out for plain RoPE")
    return dict(value)


def _checked_token_id(field: str, value: object, vocab_size: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise ValueError(
            f"{field} {value!r}: must be a token id from 0 to {vocab_size - 1}; correct it or leave it out"
        )
    return value


def _checked_token_ids(field: str, value: object, vocab_size: int) -> int | tuple[int, ...] | None:
    if not isinstance(value, (list, tuple)):
        return _checked_token_id(field, value, vocab_size)
    ids = (_checked_token_id(field, entry, vocab_size) for entry in value)
    return tuple(entry for entry in ids if entry is not None)
