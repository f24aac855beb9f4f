"""Guards against a step whose arrays do not say what its lists said: a slot of another block, a table shifted by a row.

The arrays are made for all requests at once. Held against them is the obvious loop, row by row, on random steps: ragged
prompts, cached prefixes, blocks that do not exist, tables longer than the engine's.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.batch_arrays import BatchArrays

BLOCK, WIDTH = 4, 6
LONGEST = BLOCK * WIDTH


@st.composite
def batches(draw: st.DrawFn) -> ScheduledBatch:
    is_prefill = draw(st.booleans())
    q = draw(st.integers(1, 3))
    tokens, lengths, tables = [], [], []
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.integers(1, 7)) if is_prefill else q
        length = draw(st.integers(count, LONGEST))
        blocks = draw(st.integers(-(-length // BLOCK), WIDTH + 2))
        tokens.append(draw(st.lists(st.integers(0, 99), min_size=count, max_size=count)))
        lengths.append(length)
        tables.append(draw(st.lists(st.integers(-1, 50), min_size=blocks, max_size=blocks)))
    return ScheduledBatch(is_prefill, tokens, lengths, tables)


def row_by_row(batch: ScheduledBatch) -> tuple[list[int], list[int], list[int], list[list[int]]]:
    positions, slots, ends, blocks = [], [], [], []
    for tokens, length, table in zip(batch.token_ids, batch.context_lens, batch.block_tables, strict=True):
        for position in range(length - len(tokens), length):
            block = table[position // BLOCK]
            positions.append(position)
            slots.append(-1 if block < 0 else block * BLOCK + position % BLOCK)
        ends.append(len(positions))
        blocks.append([max(block, 0) for block in table[:WIDTH]] + [0] * (WIDTH - len(table)))
    return positions, slots, ends, blocks


@given(batches())
def test_the_arrays_of_a_step_are_those_of_a_loop_over_its_rows(batch: ScheduledBatch) -> None:
    arrays = BatchArrays.of(batch, max_model_len=LONGEST, block_size=BLOCK, table_width=WIDTH)
    positions, slots, ends, blocks = row_by_row(batch)
    assert arrays.token_ids.tolist() == [token for tokens in batch.token_ids for token in tokens]
    assert arrays.positions.tolist() == positions
    assert arrays.slots.tolist() == slots
    assert arrays.ends.tolist() == ends
    assert arrays.lengths.tolist() == list(batch.context_lens)
    assert arrays.tables.tolist() == blocks


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (ScheduledBatch(False, [[1], [1]], [4, 25], [[0], [0] * 7]), "request 1 has 25 tokens; max_model_len is 24"),
        (ScheduledBatch(False, [[1], [1]], [4, 9], [[0], [0, 1]]), "request 1: 2 blocks of 4 hold fewer than 9 tokens"),
    ],
)
def test_a_request_beyond_a_limit_is_named(batch: ScheduledBatch, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchArrays.of(batch, max_model_len=LONGEST, block_size=BLOCK, table_width=WIDTH)
