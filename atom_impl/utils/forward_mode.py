"""One decision, taken once a step: how wide the step runs and whether it replays a recording.

A bucket picked in three places picks three buckets: sum for max, local for agreed, requests for rows. Here it is
picked in one pure function, and a step that does not replay what its mode asks for carries the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_impl.utils.ladder import smallest_bucket
from atom_impl.utils.step_ledger import Fallback

if TYPE_CHECKING:
    from atom_impl.config import CUDAGraphMode


@dataclass(frozen=True)
class Captured:
    """What there is to replay. Token buckets count rows; request buckets count sequences."""

    requests: tuple[int, ...] = ()
    decode_tokens: tuple[int, ...] = ()
    prefill_tokens: tuple[int, ...] = ()
    done: bool = False


@dataclass(frozen=True)
class ForwardMode:
    """The settled shape of a step. `use_cudagraph`: a request graph replays; `token_graph`: token graphs replay."""

    is_prefill: bool
    scheduled_bs: int
    scheduled_tokens: int
    running_bs: int
    running_tokens: int
    max_seqlen_q: int
    requested: str  # the CUDAGraphMode name that this phase asks for
    use_cudagraph: bool = False
    token_graph: bool = False
    fallback: Fallback | None = None

    @property
    def effective(self) -> str:
        """The `CUDAGraphMode` name of what will really happen."""
        return "FULL" if self.use_cudagraph else "TR_HYBRID" if self.token_graph else "NONE"

    @classmethod
    def decide(
        cls,
        *,
        mode: CUDAGraphMode,
        is_prefill: bool,
        scheduled_bs: int,
        scheduled_tokens: int,
        max_seqlen_q: int,
        captured: Captured,
        allow_graphs: Fallback | None = None,
    ) -> ForwardMode:
        """Settle one step of one rank.

        `allow_graphs` is the reason why no graph may be used (`None`: they may). A prefill counts its own tokens; a
        decode step is the rectangle of `scheduled_bs` requests by `max_seqlen_q` rows.
        """
        requested = phase_mode(mode, is_prefill)
        plain = cls(is_prefill, scheduled_bs, scheduled_tokens, scheduled_bs, scheduled_tokens, max_seqlen_q, requested)
        if requested == "NONE":
            return plain
        reason = allow_graphs or (None if captured.done else Fallback.NOT_CAPTURED)
        if reason is None and is_prefill and requested == "FULL":
            reason = Fallback.PREFILL_EAGER
        if reason is not None:
            return plain._with(fallback=reason)
        if is_prefill:
            rows = smallest_bucket(captured.prefill_tokens, scheduled_tokens)
            if rows is None:
                return plain._with(fallback=Fallback.NO_PREFILL_BUCKET)
            return plain._with(running_tokens=rows, token_graph=True)
        ladder = captured.requests
        if requested == "TR_HYBRID":
            rectangle = {rows for rows in captured.decode_tokens if rows % max_seqlen_q == 0}
            ladder = tuple(sorted(rows // max_seqlen_q for rows in rectangle))
        running_bs = smallest_bucket(ladder, scheduled_bs)
        if running_bs is None:
            return plain._with(fallback=Fallback.ABOVE_LADDER)
        full = requested == "FULL"
        return plain._with(
            running_bs=running_bs, running_tokens=running_bs * max_seqlen_q, use_cudagraph=full, token_graph=not full
        )

    def _with(self, **changes: object) -> ForwardMode:
        return ForwardMode(**{**self.__dict__, **changes})  # type: ignore[arg-type]


def phase_mode(mode: CUDAGraphMode, is_prefill: bool) -> str:
    """The mode that a phase asks for: one TR_HYBRID part makes every step replay token graphs, as the guide has it."""
    if mode.uses_tr_hybrid():
        return "TR_HYBRID"
    return (mode.mixed_mode() if is_prefill else mode.decode_mode()).name
