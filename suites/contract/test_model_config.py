"""A head count that does not divide, an odd head width or a NaN epsilon builds a model that runs and answers nonsense.
It is refused here, where the file that it came from can still be named.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from suites.contract.small_model import small_model


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": ""}, "architecture ''"),
        ({"hidden_size": 0}, "hidden_size 0: must be an integer of at least 1"),
        ({"vocab_size": True}, "vocab_size True"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3: must divide num_attention_heads (4)"),
        ({"head_dim": 15}, "head_dim 15: must be even"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps nan: must be a finite number above 0"),
        ({"rope_theta": 0}, "rope_theta 0"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings 'false'"),
        ({"rope_scaling": {"factor": 2.0}}, "must be a dict with a 'rope_type' name"),
        ({"eos_token_id": [0, 256]}, "eos_token_id 256: must be a token id from 0 to 255"),
        ({"bos_token_id": -1}, "bos_token_id -1"),
    ],
)
def test_an_impossible_model_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        small_model(**changes)


def test_a_model_keeps_its_own_copy_of_what_a_parsed_file_gave_it() -> None:
    scaling, eos = {"rope_type": "llama3", "factor": 8.0}, [1, 2]
    model = small_model(rope_scaling=scaling, eos_token_id=eos)
    scaling["factor"] = 1.0
    assert model.rope_scaling == {"rope_type": "llama3", "factor": 8.0}
    assert model.eos_token_id == (1, 2)
