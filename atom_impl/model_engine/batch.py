"""One step as a scheduler hands it over, checked before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduledBatch:
    """`token_ids[i]`: request i's new tokens; `context_lens[i]`: its tokens after the step; `block_tables[i]`: its KV
    blocks.

    A decode step gives every request the same number of new tokens; a prefill is ragged.
    """

    is_prefill: bool
    token_ids: Sequence[Sequence[int]]
    context_lens: Sequence[int]
    block_tables: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.context_lens) == len(self.block_tables):
            raise ValueError(
                f"{len(self.token_ids)} token lists, {len(self.context_lens)} lengths and {len(self.block_tables)} "
                "block tables: a batch has one of each per request"
            )
        if not self.token_ids:
            raise ValueError("an empty batch: a step needs at least one request")
        for index, (tokens, length) in enumerate(zip(self.token_ids, self.context_lens, strict=True)):
            if not tokens or length < len(tokens):
                raise ValueError(
                    f"request {index} has {len(tokens)} new tokens and a length of {length}: at least one new token, "
                    "and a length that counts them"
                )
        if not self.is_prefill and len({len(tokens) for tokens in self.token_ids}) > 1:
            raise ValueError(
                f"a decode step with ragged rows {[len(t) for t in self.token_ids]}: every request has the same"
            )

    @property
    def requests(self) -> int:
        return len(self.token_ids)

    @property
    def rows(self) -> int:
        return sum(len(tokens) for tokens in self.token_ids)

    @property
    def max_seqlen_q(self) -> int:
        return max(len(tokens) for tokens in self.token_ids)
