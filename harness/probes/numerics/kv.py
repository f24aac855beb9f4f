"""The KV cache as evidence: kept, put back, poisoned, and searched for writes that nobody ordered.

A pad row with slot -1 wrote the last slot of the cache through plain indexing. The step's own output was right;
another request's answer was wrong ten steps later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from harness.probes.numerics.bits import as_bits, unequal

Cache = Sequence[torch.Tensor]  # live tensors [blocks, block size, ...]


@dataclass(frozen=True)
class StrayWrite:
    """The first slot that changed although no live row of the step writes it."""

    tensor: int
    slot: int
    slots: int  # how many changed so in that tensor
    block_size: int
    of_last_step: bool = False  # a live row of the step before owned it

    def __str__(self) -> str:
        block, offset = divmod(self.slot, self.block_size)
        owner = ", the step before wrote that slot" if self.of_last_step else ""
        return f"KV tensor {self.tensor}, block {block}, offset {offset} ({self.slots} slots in that tensor{owner})"


class KvImage:
    """A copy of a whole cache."""

    def __init__(self, cache: Cache) -> None:
        if not cache:
            raise ValueError(
                "the session shows no KV tensors; kv() must return the live cache, or nothing can be restored"
            )
        self.tensors = [tensor.clone() for tensor in cache]

    @cached_property
    def digest(self) -> str:
        """Of every bit: two images of one digest are the same cache."""
        whole = hashlib.blake2b(digest_size=16)
        for tensor in self.tensors:
            whole.update(tensor.contiguous().view(torch.uint8).cpu().numpy().data)
        return whole.hexdigest()

    def restore(self, cache: Cache) -> None:
        for live, kept in zip(cache, self.tensors, strict=True):
            live.copy_(kept)

    def restore_slots(self, cache: Cache, slots: Sequence[int]) -> None:
        """Put back these flat slots only; a whole cache is copied in milliseconds, a step's slots in microseconds."""
        for live, kept, index in zip(cache, self.tensors, _indices(slots, cache), strict=True):
            live[index] = kept[index]

    def stray_write(self, cache: Cache) -> StrayWrite | None:
        """The first slot that is not as it was. Put the step's own slots back before asking."""
        for number, (live, kept) in enumerate(zip(cache, self.tensors, strict=True)):
            if not torch.equal(_words(live), _words(kept)):
                slots = unequal(live, kept).flatten(2).any(dim=2).flatten().nonzero().flatten()
                return StrayWrite(number, int(slots[0]), len(slots), live.shape[1])
        return None


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits in the widest integers that fit, because a search of the cache is bound by elements."""
    wide = (tensor.shape[-1] * tensor.element_size()) % 8 == 0 and tensor.is_contiguous()
    return tensor.view(torch.int64) if wide else as_bits(tensor)


Index = tuple[torch.Tensor, torch.Tensor]


def _indices(slots: Sequence[int], cache: Cache) -> list[Index]:
    """Flat slots as (block, offset) for each tensor; one index serves all that are laid out alike."""
    made: dict[tuple[torch.device, int], Index] = {}
    for tensor in cache:
        place = tensor.device, tensor.shape[1]
        if place not in made:
            flat = torch.as_tensor(list(slots), dtype=torch.long, device=tensor.device)
            made[place] = flat // tensor.shape[1], flat % tensor.shape[1]
    return [made[tensor.device, tensor.shape[1]] for tensor in cache]


def slots_of(cache: Cache, slots: Sequence[int]) -> list[torch.Tensor]:
    """Copies of these flat slots, one [slots, ...] tensor for each cache tensor."""
    return [tensor[index] for tensor, index in zip(cache, _indices(slots, cache), strict=True)]


def poison_all_but(cache: Cache, slots: Sequence[int]) -> None:
    """NaN in every slot but these flat ones. Integer caches have no NaN and are left alone."""
    for tensor, kept, index in zip(cache, slots_of(cache, slots), _indices(slots, cache), strict=True):
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
            tensor[index] = kept
