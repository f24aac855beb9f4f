"""What a step takes from the recordings' pool on a GPU, by the caching allocator's own history.

An eager region that allocated from the pool passed every comparison of values: its small temporaries fitted into a
piece of the pool that no recording used. With a larger model they would have been the next segment's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from harness.engines.observed import PoolUse

_MAX_ENTRIES = 1 << 20
_TAKEN, _RETURNED = "alloc", "free_requested"


@contextmanager
def watching_pools(pools: Sequence[Any]) -> Iterator[Callable[[], PoolUse | None]]:
    """Keep the allocator's history inside the block; the function that it gives says afterwards what the `pools` (their
    ids) handed out and took back. None for no pools.
    """
    if not pools:
        yield lambda: None
        return
    running = bool(getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)())
    if not running:
        torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=_MAX_ENTRIES)
    begun = len(_entries(torch.cuda.memory._snapshot()))
    found: list[PoolUse] = []
    try:
        yield lambda: found[0]
        after = torch.cuda.memory._snapshot()
        found.append(read_use(_entries(after)[begun:], after["segments"], pools))
    finally:
        if not running:
            torch.cuda.memory._record_memory_history(None)


def read_use(
    history: Iterable[Mapping[str, Any]], segments: Iterable[Mapping[str, Any]], pools: Sequence[Any]
) -> PoolUse:
    """Count the entries of an allocator's history that lie in a segment of one of `pools`."""
    wanted = {tuple(pool) for pool in pools}
    inside = [
        (segment["address"], segment["address"] + segment["total_size"])
        for segment in segments
        if tuple(segment["segment_pool_id"]) in wanted
    ]
    entries = [
        entry
        for entry in history
        if entry["action"] in (_TAKEN, _RETURNED) and any(low <= entry["addr"] < high for low, high in inside)
    ]
    taken = [entry for entry in entries if entry["action"] == _TAKEN]
    site = _site(entries[0].get("frames") or ()) if entries else ""
    return PoolUse(len(taken), sum(entry["size"] for entry in taken), len(entries) - len(taken), site)


def _entries(snapshot: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    traces = snapshot["device_traces"]
    device = torch.cuda.current_device()
    return list(traces[device]) if device < len(traces) else []


def _site(frames: Iterable[Mapping[str, Any]]) -> str:
    """`file:line in function` of the innermost frame outside torch and the harness's own count."""
    for frame in frames:
        path = Path(frame["filename"])
        if path.suffix == ".py" and "torch" not in path.parts and path.parent != Path(__file__).parent:
            return f"{path.name}:{frame['line']} in {frame['name']}"
    return ""
