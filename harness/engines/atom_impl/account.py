"""What the engine says of itself: a step's claim, its pools, its weights. Probes hold it against what they count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from atom_impl.device.base import Device
from atom_impl.device.software import SoftwareGraph
from atom_impl.graphs.recording import Recording, Segment
from atom_impl.model_loader.parameters import EMBEDDING, LM_HEAD
from atom_impl.utils.step_ledger import StepRecord

_RECORDED: tuple[type, ...] = (SoftwareGraph, torch.cuda.CUDAGraph)


def claim_of(record: StepRecord) -> dict[str, Any]:
    claim = dict(vars(record))  # shallow: this runs inside every timed step
    claim["copies"] = {kind.value: {"count": copy.count, "bytes": copy.bytes} for kind, copy in record.copies.items()}
    claim["fallback"] = None if record.fallback is None else record.fallback.value
    return claim


def pools_of(device: Device, recordings: Mapping[int, Recording]) -> dict[str, Any]:
    """In which pools each bucket's graphs lie and how large those are, as the graphs say: the runner names one pool."""
    names: dict[Any, str] = {}
    homes: dict[int, list[str]] = {}
    for rows, recording in recordings.items():
        for graph in (step.graph for step in recording.steps if isinstance(step, Segment)):
            handle: Any = graph.pool()
            name = names.setdefault(handle, f"pool {len(names) + 1}")
            if name not in homes.setdefault(rows, []):
                homes[rows].append(name)
    return {"pools": homes, "pool_sizes": {name: device.pool_bytes(handle) for handle, name in names.items()}}


def pool_handles(recordings: Iterable[Recording]) -> list[Any]:
    """The pools of all recorded graphs, each once, as the graphs say. A segment that runs eagerly has none."""
    graphs = [graph for recording in recordings for graph in recording.graphs()]
    return list(dict.fromkeys(graph.pool() for graph in graphs if isinstance(graph, _RECORDED)))


def step_weight_bytes(weights: Mapping[str, torch.Tensor]) -> int:
    """Bytes of the weights that every step reads whole; an embedding is read by the row, unless it is the LM head."""
    apart = LM_HEAD in weights and weights[LM_HEAD].data_ptr() != weights[EMBEDDING].data_ptr()
    storages = {tensor.data_ptr(): tensor.nbytes for name, tensor in weights.items() if name != EMBEDDING or not apart}
    return sum(storages.values())
