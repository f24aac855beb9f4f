"""The Triton body of decode attention: the launches, their sizes, and what they cannot serve.

A decode kernel whose grid followed the longest sequence was recorded at length 1 and attended to one block from then
on. The grids here follow the block table's capacity and the lengths stay on the device, so a recording of the whole
forward freezes nothing. The price is idle programs past a sequence's end; they return at once.

On a CPU the same kernels run in Triton's interpreter, each as one entry of a recording: slow, and meant for tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from atom_impl.device.software import launch
from atom_impl.device.software.pool import alias
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.model_ops.paged_attention import check_decode_shapes
from atom_impl.utils.forward_context import AttentionMetaData

try:
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    from atom_impl.model_ops import triton_kernels as kernels
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "triton":
        raise
    raise ModuleNotFoundError(
        "op_backend 'triton' needs the package triton, which this interpreter lacks; "
        "install it (GPU builds of torch bring it along) or choose op_backend='torch'",
        name=error.name,
    ) from error

#: Keys that one step of a program's loop loads; half as many where an element has four bytes or more.
TILE_TOKENS = 64
#: A split is at least this long, so that merging costs less than it hides.
SPLIT_TOKENS = 128
#: Splits of the longest table: bounds the memory of the partial results.
MAX_SPLITS = 32

_SMALLEST_TILE = 16  # a matrix instruction takes no fewer rows or lanes
#: No float64: AMD's backend of Triton has no matrix product in it, and the reference arm wants other code anyway.
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class SplitPlan:
    """How a table's capacity is cut: `splits` pieces of `split_tokens`, each walked in tiles of `tile_tokens`."""

    splits: int
    split_tokens: int
    tile_tokens: int


def plan_splits(capacity: int, dtype: torch.dtype) -> SplitPlan:
    """The cut of a table with `capacity` slots. Of the batch it knows nothing: a row's bits depend on no neighbour."""
    capacity = max(capacity, 1)  # a table without blocks has a launch as well: it writes zeros
    tile = TILE_TOKENS if dtype.itemsize < 4 else max(16, TILE_TOKENS // 2)
    wanted = min(-(-capacity // SPLIT_TOKENS), MAX_SPLITS)
    tokens = -(-capacity // (wanted * tile)) * tile
    return SplitPlan(-(-capacity // tokens), tokens, tile)


@dataclass(frozen=True)
class Launch:
    """One kernel launch, laid out but not made: `tensors`, then `sizes`, are its arguments; `written` are positions."""

    kernel: Any
    grid: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    written: tuple[int, ...]
    sizes: tuple[int, ...]
    constants: dict[str, Any]

    def run(self) -> None:
        """Launch on the tensors' device; on a CPU, interpreted and as one entry of a recording."""
        if 0 in self.grid:
            return
        if self.tensors[0].device.type == "cpu":
            # The entry keeps this callable. Did it hold the tensors, a pool would cost the sum of all layers.
            interpreted = partial(_interpret, self.kernel, self.grid, self.constants)
            name = f"triton::{self.kernel.fn.__name__}"
            launch(interpreted, *self.tensors, *self.sizes, name=name, written=self.written)
        else:
            self.kernel[self.grid](*self.tensors, *self.sizes, **self.constants)


def _interpret(kernel: Any, grid: tuple[int, ...], constants: dict[str, Any], *arguments: torch.Tensor | int) -> None:
    interpreted = kernel if isinstance(kernel, InterpretedFunction) else InterpretedFunction(kernel.fn)
    # The interpreter leaves reference cycles around its arguments, and nothing is collected in a recording: without
    # aliases no block of a pool would be given back before its end.
    aliases = [alias(each) if isinstance(each, torch.Tensor) else each for each in arguments]
    interpreted[grid](*aliases, **constants)


def check_dtype(dtype: torch.dtype) -> None:
    """Raise ValueError for a model dtype that the kernels do not compute in."""
    if dtype not in DTYPES:
        raise ValueError(
            f"op_backend 'triton' does not compute in {dtype}; choose one of {', '.join(map(str, DTYPES))}, "
            "or op_backend='torch'"
        )


def decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: KVCacheTensor, meta: AttentionMetaData, scale: float
) -> torch.Tensor:
    """`paged_attention.decode` as three launches, with its contract; see there for shapes and padding.

    A row that may not be written goes nowhere, scratch included. Raises ValueError for metadata of other shapes and
    for operands of different or unserved dtypes. May be recorded: nothing is read on the host.
    """
    check_decode_shapes(q, meta)
    _check_operands(q, k, v, kv)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    # The interpreter cuts a bfloat16 off where hardware rounds: on a CPU, torch rounds.
    out = torch.empty(q.shape, dtype=torch.float32 if q.device.type == "cpu" else q.dtype, device=q.device)
    for step in decode_launches(q, k, v, out, kv, meta, scale):
        step.run()
    return out.to(q.dtype)


def decode_launches(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    kv: KVCacheTensor,
    meta: AttentionMetaData,
    scale: float,
) -> tuple[Launch, Launch, Launch]:
    """What `decode` launches: store, attend, merge. Reads shapes alone, so tensors of the meta device do as well."""
    places = (meta.block_tables.shape[0], _plan(q, kv, meta).splits, meta.max_seqlen_q, q.shape[1])
    mixed = torch.empty((*places, q.shape[2]), dtype=torch.float32, device=q.device)
    peaks, totals = (torch.empty(places, dtype=torch.float32, device=q.device) for _ in range(2))
    return (
        _store(k, v, kv, meta),
        _attend(q, kv, meta, scale, (mixed, peaks, totals)),
        _merge(q, kv, meta, (mixed, peaks, totals), out),
    )


def _store(k: torch.Tensor, v: torch.Tensor, kv: KVCacheTensor, meta: AttentionMetaData) -> Launch:
    rows, kv_heads, head_dim = k.shape
    return Launch(
        kernels.store_kernel,
        (rows,),
        (k, v, kv.k_cache, kv.v_cache, meta.slot_mapping, meta.live_rows),
        (2, 3),
        (kv.num_slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1)),
        {"KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "WIDTH": triton.next_power_of_2(kv_heads * head_dim)},
    )


def _attend(
    q: torch.Tensor, kv: KVCacheTensor, meta: AttentionMetaData, scale: float, results: tuple[torch.Tensor, ...]
) -> Launch:
    heads, kv_heads, plan = q.shape[1], kv.k_cache.shape[2], _plan(q, kv, meta)
    requests, width = meta.block_tables.shape
    group, queries = heads // kv_heads, meta.max_seqlen_q
    return Launch(
        kernels.attend_kernel,
        (requests, kv_heads, plan.splits),
        (q, kv.k_cache, kv.v_cache, meta.block_tables, meta.context_lens, meta.live_rows, *results),
        (6, 7, 8),
        (
            kv.num_blocks,
            width * kv.block_size,
            plan.splits,
            plan.split_tokens,
            meta.block_tables.stride(0),
            q.stride(0),
            q.stride(1),
        ),
        {
            "SCALE_LOG2": scale * math.log2(math.e),
            "HEADS": heads,
            "GROUP": group,
            "QUERIES": queries,
            "HEAD_DIM": q.shape[2],
            "BLOCK_SIZE": kv.block_size,
            "ROWS": max(_SMALLEST_TILE, triton.next_power_of_2(group * queries)),
            "LANES": _lanes(q),
            "TILE": plan.tile_tokens,
            # The interpreter multiplies the bit patterns of bfloat16; widened, its products are those of a GPU.
            "WIDEN": q.device.type == "cpu" and q.dtype is torch.bfloat16,
        },
    )


def _merge(
    q: torch.Tensor,
    kv: KVCacheTensor,
    meta: AttentionMetaData,
    results: tuple[torch.Tensor, ...],
    out: torch.Tensor,
) -> Launch:
    plan = _plan(q, kv, meta)
    return Launch(
        kernels.merge_kernel,
        (q.shape[0], q.shape[1]),
        (*results, meta.context_lens, meta.live_rows, out),
        (5,),
        (meta.block_tables.shape[1] * kv.block_size, plan.splits, plan.split_tokens),
        {
            "HEADS": q.shape[1],
            "QUERIES": meta.max_seqlen_q,
            "HEAD_DIM": q.shape[2],
            "SPLITS": triton.next_power_of_2(plan.splits),
            "LANES": _lanes(q),
        },
    )


def _plan(q: torch.Tensor, kv: KVCacheTensor, meta: AttentionMetaData) -> SplitPlan:
    return plan_splits(meta.block_tables.shape[1] * kv.block_size, q.dtype)


def _lanes(q: torch.Tensor) -> int:
    return max(_SMALLEST_TILE, triton.next_power_of_2(q.shape[2]))


def _check_operands(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: KVCacheTensor) -> None:
    check_dtype(q.dtype)
    dtypes = {x.dtype for x in (q, k, v, kv.k_cache, kv.v_cache)}
    if len(dtypes) > 1:
        raise ValueError(
            f"Triton decode got {', '.join(sorted(map(str, dtypes)))}; q, k, v and the cache share one dtype: "
            "allocate the cache in q's or choose op_backend='torch'"
        )
    rows, kv_heads, head_dim = q.shape[0], *kv.k_cache.shape[2:]
    if q.shape[2] != head_dim or q.shape[1] % kv_heads or not k.shape == v.shape == (rows, kv_heads, head_dim):
        raise ValueError(
            f"Triton decode got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} for a cache of {kv_heads} "
            f"heads of {head_dim}; q is [rows, a multiple of {kv_heads}, {head_dim}], k and v have {kv_heads} heads"
        )
