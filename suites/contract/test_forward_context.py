"""Guards against a context that outlives its step: a raising forward that left it set poisoned the next step
upstream.
"""

from __future__ import annotations

import threading

import pytest
import torch

from atom_impl.config import Config
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.utils import forward_context as module
from atom_impl.utils.forward_context import (
    Context,
    DPMetadata,
    ForwardContext,
    SpecDecodeMetadata,
    forward_context,
    get_forward_context,
    reset_forward_context,
    set_forward_context,
    thread_forward_context,
    token_graph_action,
)


def test_reading_a_context_that_was_never_set_says_what_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_process", None)
    with pytest.raises(RuntimeError, match="call set_forward_context"):
        get_forward_context()
    assert token_graph_action() == (None, "decode")


def test_the_guides_fields_and_defaults() -> None:
    assert ForwardContext() == ForwardContext({}, {}, {}, None, None, None, None, None, None)
    context = Context(torch.zeros(1))
    assert (context.is_prefill, context.batch_size, context.running_bs) == (False, 0, 0)
    assert (context.running_tokens, context.is_draft) == (0, False)


def test_set_use_reset_leaves_an_empty_context() -> None:
    config = Config()
    config.compilation_config.static_forward_context["layer"] = "module"
    set_forward_context({"lens": 1}, config, Context(torch.zeros(2)), num_tokens_across_dp=[3, 5])
    live = get_forward_context()
    assert live.no_compile_layers["layer"] == "module"
    assert live.dp_metadata == DPMetadata([3, 5])
    assert live.dp_metadata.max_tokens_across_dp == 5
    reset_forward_context()
    assert get_forward_context().attn_metadata == {}
    assert get_forward_context().context is None


def test_a_verifying_step_finds_its_drafts_and_its_cache_and_leaves_neither() -> None:
    rows = torch.arange(3)
    drafts = SpecDecodeMetadata(
        draft_token_ids=rows, num_spec_steps=2, target_logits_indices=rows[:2], bonus_logits_indices=rows[2:]
    )
    cache = {"layer": KVCacheTensor(torch.zeros(2, 1, 1, 1), torch.zeros(2, 1, 1, 1))}
    with forward_context({}, Config(), Context(rows, is_draft=True), None, drafts, kv_cache_data=cache) as live:
        assert live.spec_decode_metadata is drafts
        assert live.kv_cache_data["layer"] is cache["layer"]
        assert live.context is not None
        assert live.context.is_draft
    assert get_forward_context() == ForwardContext()


def test_the_context_is_reset_when_the_forward_raises() -> None:
    with (
        pytest.raises(ArithmeticError),
        forward_context({"lens": 1}, Config(), Context(torch.zeros(1)), tr_graph="replay"),
    ):
        raise ArithmeticError
    assert get_forward_context() == ForwardContext()


def test_an_unknown_token_graph_action_is_refused() -> None:
    with pytest.raises(ValueError, match="'record' or 'replay'"):
        set_forward_context({}, Config(), Context(torch.zeros(1)), tr_graph="capture")  # type: ignore[arg-type]


def test_a_threads_own_context_hides_the_process_one_and_only_there() -> None:
    seen: list[object] = []

    def other() -> None:
        with thread_forward_context(ForwardContext(attn_metadata={"who": "thread"})):
            seen.append(get_forward_context().attn_metadata)
        seen.append(get_forward_context().attn_metadata)

    with forward_context({"who": "process"}, Config(), Context(torch.zeros(1))):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert get_forward_context().attn_metadata == {"who": "process"}
    assert seen == [{"who": "thread"}, {"who": "process"}]
