"""Steps for a model without a runner: prompts and decode over a paged cache whose blocks lie in shuffled order.

Blocks in ascending order hide a table that is read wrongly, because position and slot are then the same number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from atom_impl.config import Config
from atom_impl.model_ops.kv_cache import allocate_kv_cache
from atom_impl.utils.forward_context import AttentionMetaData, AttnState, Context, forward_context


class PagedDriver:
    """Runs `requests` sequences of at most `max_len` tokens through `model`, which was built with `config`."""

    def __init__(self, model: Any, config: Config, *, requests: int, max_len: int, seed: int = 0) -> None:
        cfg = config.hf_config
        assert cfg is not None
        self.model, self.config = model, config
        block = config.kv_cache_block_size
        width = -(-max_len // block)
        order = list(range(requests * width))
        random.Random(seed).shuffle(order)
        self.tables = torch.tensor(order, dtype=torch.int32).view(requests, width)
        self.lengths = [0] * requests
        self.kv = allocate_kv_cache(
            config.compilation_config.static_forward_context,
            num_blocks=requests * width,
            block_size=block,
            num_kv_heads=cfg.num_key_value_heads,
            head_dim=cfg.head_dim,
            dtype=next(model.parameters()).dtype,
            device=config.device,
        )

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Append one chunk of tokens to each request; returns logits [tokens, vocabulary] of each."""
        before, added = list(self.lengths), [len(prompt) for prompt in prompts]
        state = AttnState.PREFILL_PREFIX if any(before) else AttnState.PREFILL_NATIVE
        logits = self._step(prompts, before, added, state)
        return list(logits.split(added))

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int]) -> torch.Tensor:
        """One token for each request; returns logits [requests, vocabulary]."""
        added = [1] * len(tokens)
        return self._step([[token] for token in tokens], list(self.lengths), added, AttnState.DECODE)

    def _step(
        self, tokens: Sequence[Sequence[int]], before: list[int], added: list[int], state: AttnState
    ) -> torch.Tensor:
        device, block = self.config.device, self.config.kv_cache_block_size
        after = [start + count for start, count in zip(before, added, strict=True)]
        where = [(i, p) for i, start in enumerate(before) for p in range(start, after[i])]
        slots = [int(self.tables[i, p // block]) * block + p % block for i, p in where]
        positions = torch.tensor([p for _, p in where], device=device)
        starts = [0]
        for count in added:
            starts.append(starts[-1] + count)
        meta = AttentionMetaData(
            cu_seqlens_q=torch.tensor(starts, dtype=torch.int32, device=device),
            slot_mapping=torch.tensor(slots, device=device),
            context_lens=torch.tensor(after, dtype=torch.int32, device=device),
            block_tables=self.tables.to(device),
            live_rows=torch.tensor([len(where)], dtype=torch.int32, device=device),
            max_seqlen_q=max(added),
            max_seqlen_k=max(after),
            state=state,
            seq_lens_q=None if state is AttnState.DECODE else added,
            seq_lens_k=None if state is AttnState.DECODE else after,
        )
        context = Context(
            positions, state is not AttnState.DECODE, len(tokens), running_bs=len(tokens), running_tokens=len(where)
        )
        ids = torch.tensor([token for chunk in tokens for token in chunk], device=device)
        with forward_context(meta, self.config, context, kv_cache_data=self.kv):
            hidden = self.model(ids, positions)
        self.lengths = after
        logits: torch.Tensor = self.model.compute_logits(hidden)
        return logits
