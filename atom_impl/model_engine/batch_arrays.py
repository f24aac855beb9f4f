"""A step's Python lists as arrays, converted once and for all requests together.

A loop over requests cost 10 us for each of them: at 64 requests the host spent longer on block tables than a GPU on the
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from atom_impl.model_engine.batch import ScheduledBatch

Array = np.ndarray


@dataclass(frozen=True)
class BatchArrays:
    """`ends` [requests]: where each request's rows end. Of every row: `token_ids`, `positions`, and `slots`, -1 for a
    block that does not exist. `tables` [requests, table width]: blocks, 0 beyond a request's own.
    """

    lengths: Array
    ends: Array
    token_ids: Array
    positions: Array
    slots: Array
    tables: Array

    @classmethod
    def of(cls, batch: ScheduledBatch, *, max_model_len: int, block_size: int, table_width: int) -> BatchArrays:
        """Raises `ValueError` for a request that is longer than `max_model_len` or than its blocks."""
        counts = list(map(len, batch.token_ids))
        requests, rows = len(counts), sum(counts)
        _check(batch, max_model_len, block_size)
        tables = _tables(batch.block_tables, table_width)
        lengths = _integers(batch.context_lens, requests)
        ends = np.cumsum(counts)
        owners = np.arange(requests)
        if rows == requests:  # one row each
            positions = lengths - 1
        else:
            owners = owners.repeat(counts)
            positions = np.arange(rows) + (lengths - ends)[owners]
        block, offset = np.divmod(positions, block_size)
        blocks = tables[owners, block].astype(np.int64)
        slots = blocks * block_size + offset
        slots[blocks < 0] = -1
        token_ids = _integers(chain.from_iterable(batch.token_ids), rows)
        return cls(lengths, ends, token_ids, positions, slots, np.maximum(tables, 0, out=tables))


def _integers(values: Iterable[int], count: int) -> Array:
    return np.fromiter(values, np.int64, count)


def _check(batch: ScheduledBatch, max_model_len: int, block_size: int) -> None:
    for request, (length, table) in enumerate(zip(batch.context_lens, batch.block_tables, strict=True)):
        if length > max_model_len:
            raise ValueError(f"request {request} has {length} tokens; max_model_len is {max_model_len}")
        if len(table) * block_size < length:
            raise ValueError(f"request {request}: {len(table)} blocks of {block_size} hold fewer than {length} tokens")


def _tables(tables: Sequence[Sequence[int]], table_width: int) -> Array:
    """Blocks as given, a row for each request; what lies beyond `table_width` no position can reach."""
    widths = list(map(len, tables))
    if max(widths) > table_width:
        tables, widths = [table[:table_width] for table in tables], [min(width, table_width) for width in widths]
    flat = np.fromiter(chain.from_iterable(tables), np.int32, sum(widths))
    found = np.zeros((len(tables), table_width), np.int32)
    if len(set(widths)) == 1:
        found[:, : widths[0]] = flat.reshape(len(tables), -1)
    else:
        found[np.arange(table_width) < np.array(widths)[:, None]] = flat
    return found
