"""Triton kernels of paged decode attention: store new keys and values, attend split by split, merge the splits.

Two faults shaped them. A split count taken from a length on the host is frozen by a recording made at length 1. An
arrival counter that is zeroed outside the graph stops the second replay (REARM). So every size here is a shape, every
length is loaded from device memory, and the merge is a launch of its own.

A row at or past `live_rows` stores nothing, reads no cache and comes out as zeros. A slot that no query of a request
sees is never loaded, because a weight of zero does not remove its NaN.

Metadata are views of staging buffers at any offset. Their alignment picks no variant of a kernel, because a variant
that a warm-up did not meet would be compiled in the middle of a recording.
"""

# mypy: disable-error-code="no-untyped-def"
# Kernel parameters are pointers and integers of the device language: it has annotations for constants alone.
import triton
import triton.language as tl

# By name, and not through tl.max and tl.sum: those can be interpreted only if triton was imported for that alone.
LARGER = tl.standard._elementwise_max
ADDED = tl.standard._sum_combine


@triton.jit(do_not_specialize=["num_slots"], do_not_specialize_on_alignment=["slots", "live_rows"])
def store_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    live_rows,
    num_slots,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One program a row. `num_slots` counts what requests may own; a slot outside it is not written."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if (row < tl.load(live_rows)) & (slot >= 0) & (slot < num_slots):
        element = tl.arange(0, WIDTH)
        head, lane = element // HEAD_DIM, element % HEAD_DIM
        inside = element < KV_HEADS * HEAD_DIM
        target = slot * (KV_HEADS * HEAD_DIM) + element
        key = tl.load(k + row * k_row_stride + head * k_head_stride + lane, mask=inside)
        tl.store(k_cache + target, key, mask=inside)
        value = tl.load(v + row * v_row_stride + head * v_head_stride + lane, mask=inside)
        tl.store(v_cache + target, value, mask=inside)


@triton.jit(do_not_specialize=["num_blocks"], do_not_specialize_on_alignment=["tables", "lengths", "live_rows"])
def attend_kernel(
    q,
    k_cache,
    v_cache,
    tables,
    lengths,
    live_rows,
    partial,
    peaks,
    totals,
    num_blocks,
    capacity,
    splits,
    split_tokens,
    table_stride,
    q_row_stride,
    q_head_stride,
    SCALE_LOG2: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One program a request, KV head and split: all queries and heads that share its keys, in one tile of `ROWS`.

    Leaves the unnormalised sum of values in `partial` [requests, splits, queries, heads, head dim] and its exponents'
    peak (base 2) and total beside it. A split that no live query reaches leaves nothing.
    """
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    live_queries = tl.minimum(tl.load(live_rows) - request * QUERIES, QUERIES)
    first_sight = tl.load(lengths + request).to(tl.int64) - (QUERIES - 1)
    reach = tl.minimum(first_sight + live_queries - 1, capacity)
    begin = split * split_tokens
    if (live_queries > 0) & (begin < reach):
        end = tl.minimum(reach, begin + split_tokens).to(tl.int32)
        item = tl.arange(0, ROWS)
        query, head = item // GROUP, kv_head * GROUP + item % GROUP
        lane = tl.arange(0, LANES)
        is_row = query < live_queries
        is_lane = lane < HEAD_DIM
        row = request * QUERIES + query
        q_at = row[:, None] * q_row_stride + head[:, None] * q_head_stride + lane[None, :]
        q_tile = tl.load(q + q_at, mask=is_row[:, None] & is_lane[None, :], other=0.0)
        if WIDEN:
            q_tile = q_tile.to(tl.float32)
        sight = tl.where(is_row, tl.minimum(first_sight + query, end), 0)
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.full([ROWS], 0.0, tl.float32)
        mixed = tl.full([ROWS, LANES], 0.0, tl.float32)
        for start in range(begin, end, TILE):
            position = start + tl.arange(0, TILE)
            inside = position < end
            block = tl.load(tables + request * table_stride + position // BLOCK_SIZE, mask=inside, other=0)
            block = tl.minimum(tl.maximum(block, 0), num_blocks).to(tl.int64)
            at = ((block * BLOCK_SIZE + position % BLOCK_SIZE) * (HEADS // GROUP) + kv_head) * HEAD_DIM
            seen = inside[:, None] & is_lane[None, :]
            keys = tl.load(k_cache + at[:, None] + lane[None, :], mask=seen, other=0.0)
            values = tl.load(v_cache + at[:, None] + lane[None, :], mask=seen, other=0.0)
            if WIDEN:
                keys, values = keys.to(tl.float32), values.to(tl.float32)
            scores = tl.dot(q_tile, tl.trans(keys), input_precision="ieee") * SCALE_LOG2
            scores = tl.where(position[None, :] < sight[:, None], scores, float("-inf"))
            higher = tl.maximum(peak, tl.reduce(scores, 1, LARGER))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(scores - base[:, None])
            shrink = tl.exp2(peak - base)
            total = total * shrink + tl.reduce(weights, 1, ADDED)
            mixed = mixed * shrink[:, None]
            # Two narrow products keep the weights to 16 bits or more: one would round them as coarsely as the result.
            coarse = weights.to(values.dtype)
            mixed = tl.dot(coarse, values, acc=mixed, input_precision="ieee")
            if coarse.dtype != weights.dtype:
                rest = (weights - coarse.to(tl.float32)).to(values.dtype)
                mixed = tl.dot(rest, values, acc=mixed, input_precision="ieee")
            peak = higher
        place = ((request * splits + split) * QUERIES + query) * HEADS + head
        tl.store(partial + place[:, None] * HEAD_DIM + lane[None, :], mixed, mask=is_row[:, None] & is_lane[None, :])
        tl.store(peaks + place, peak, mask=is_row)
        tl.store(totals + place, total, mask=is_row)


@triton.jit(do_not_specialize_on_alignment=["lengths", "live_rows"])
def merge_kernel(
    partial,
    peaks,
    totals,
    lengths,
    live_rows,
    out,
    capacity,
    splits,
    split_tokens,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    LANES: tl.constexpr,
):
    """One program a row and head: weighs the splits that the row reaches. Reads no other: they hold old memory."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    request, query = row // QUERIES, row % QUERIES
    sight = tl.load(lengths + request).to(tl.int64) - (QUERIES - 1) + query
    sight = tl.where(row < tl.load(live_rows), tl.minimum(sight, capacity), 0)
    split = tl.arange(0, SPLITS)
    lane = tl.arange(0, LANES)
    reached = split * split_tokens < sight
    place = ((request * splits + split) * QUERIES + query) * HEADS + head
    peak = tl.load(peaks + place, mask=reached, other=float("-inf"))
    total = tl.load(totals + place, mask=reached, other=0.0)
    highest = tl.reduce(peak, 0, LARGER)
    weight = tl.exp2(peak - tl.where(highest == float("-inf"), 0.0, highest))
    held = reached[:, None] & (lane < HEAD_DIM)[None, :]
    parts = tl.load(partial + place[:, None] * HEAD_DIM + lane[None, :], mask=held, other=0.0)
    mass = tl.where(sight > 0, tl.reduce(weight * total, 0, ADDED), 1.0)
    result = tl.reduce(weight[:, None] * parts, 0, ADDED) / mass
    tl.store(out + (row * HEADS + head) * HEAD_DIM + lane, result.to(out.dtype.element_ty), mask=lane < HEAD_DIM)
