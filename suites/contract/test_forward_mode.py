"""Guards against the wrong bucket: `bisect_right` for `bisect_left`, requests for rows, a quiet eager step.

The decision is enumerated over every batch and phase and compared with arithmetic of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from atom_impl.config import CUDAGraphMode
from atom_impl.utils.forward_mode import Captured, ForwardMode
from atom_impl.utils.step_ledger import Fallback

LADDER = (1, 2, 4, 8)
CAPTURED = Captured(requests=LADDER, decode_tokens=LADDER, prefill_tokens=(16, 64), done=True)


def decide(mode: str, *, prefill: bool = False, batch: int = 1, rows: int | None = None, **changes: Any) -> ForwardMode:
    settings: dict[str, Any] = {"max_seqlen_q": 1, "captured": CAPTURED, **changes}
    return ForwardMode.decide(
        mode=CUDAGraphMode[mode],
        is_prefill=prefill,
        scheduled_bs=batch,
        scheduled_tokens=batch * settings["max_seqlen_q"] if rows is None else rows,
        **settings,
    )


@pytest.mark.parametrize("batch", range(1, 9))
@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "TR_HYBRID", "FULL_AND_TR_HYBRID"])
def test_a_decode_step_pads_to_the_smallest_bucket_that_holds_it(mode: str, batch: int) -> None:
    settled = decide(mode, batch=batch)
    smallest = min(size for size in LADDER if size >= batch)
    assert (settled.running_bs, settled.running_tokens) == (smallest, smallest)
    assert settled.effective == ("FULL" if mode in ("FULL", "FULL_DECODE_ONLY") else "TR_HYBRID")
    assert settled.fallback is None


def test_a_batch_above_the_ladder_is_a_named_fallback_that_pads_nothing() -> None:
    for mode in ("FULL", "TR_HYBRID"):
        settled = decide(mode, batch=9)
        assert settled.effective == "NONE"
        assert settled.fallback is Fallback.ABOVE_LADDER
        assert settled.running_bs == 9


def test_mode_none_pads_nothing_and_falls_back_from_nothing() -> None:
    settled = decide("NONE", batch=3)
    assert (settled.effective, settled.fallback, settled.running_tokens) == ("NONE", None, 3)


@pytest.mark.parametrize(
    ("mode", "effective", "fallback"),
    [
        ("NONE", "NONE", None),
        ("TR_HYBRID", "TR_HYBRID", None),
        ("FULL_AND_TR_HYBRID", "TR_HYBRID", None),
        ("FULL", "NONE", Fallback.PREFILL_EAGER),
        ("FULL_DECODE_ONLY", "NONE", None),
    ],
)
def test_prefill_replays_token_buckets_only_under_tr_hybrid(
    mode: str, effective: str, fallback: Fallback | None
) -> None:
    settled = decide(mode, prefill=True, rows=17)
    assert (settled.effective, settled.fallback) == (effective, fallback)
    assert settled.running_tokens == (64 if effective == "TR_HYBRID" else 17)


def test_a_prefill_above_every_bucket_is_a_named_fallback() -> None:
    assert decide("TR_HYBRID", prefill=True, rows=64).effective == "TR_HYBRID"
    assert decide("TR_HYBRID", prefill=True, rows=65).fallback is Fallback.NO_PREFILL_BUCKET


@pytest.mark.parametrize("reason", [Fallback.ENFORCE_EAGER, Fallback.GRAPHS_OFF, Fallback.REQUESTED])
def test_a_reason_not_to_use_graphs_is_kept(reason: Fallback) -> None:
    assert decide("FULL", batch=2, allow_graphs=reason).fallback is reason


def test_before_capture_every_graph_mode_falls_back_and_says_so() -> None:
    assert decide("TR_HYBRID", batch=2, captured=Captured()).fallback is Fallback.NOT_CAPTURED


def test_rows_and_requests_are_not_confused_when_a_request_has_several_rows() -> None:
    captured = Captured(requests=(1, 2, 4), decode_tokens=(4, 8, 16), done=True)
    full = decide("FULL", batch=3, max_seqlen_q=4, captured=captured)
    assert (full.running_bs, full.running_tokens) == (4, 16)
    tokens = decide("TR_HYBRID", batch=3, max_seqlen_q=4, captured=captured)
    assert (tokens.running_bs, tokens.running_tokens) == (4, 16)
