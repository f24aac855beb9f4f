"""What the recordings keep of the machine: one shared pool as large as its largest bucket, not the sum of all.

Strong references to intermediates turned a pool of 50 MiB into the sum of every bucket's; capture still passed, and
the KV cache shrank. A pool made anew for each bucket does the same, and the first pool's size shows nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.buckets import mode_of
from harness.probes.gates import judged, not_applicable, report
from harness.records import GateResult

#: Measured 1.08 on a GPU with hand-off buffers in the pool; 1.33 with them outside, and the sum beyond that.
POOL_FACTOR = 1.15
MIB = 2**20


class MemoryProbe:
    name = "memory"

    def run(self, context: ProbeContext) -> ProbeResult:
        names: tuple[str, ...] = ("pool_bytes", "pool_bytes_largest")
        claimed = {name: context.capture[name] for name in names if name in context.capture}
        return ProbeResult(gates=[_pool_gate(context), _one_pool_gate(context)], counters=claimed)


def _pool_gate(context: ProbeContext) -> GateResult:
    if mode_of(context) == "NONE":
        return not_applicable("closed.pool", "the cell's mode records no graph for this phase")
    pool, largest = _size(context, "pool_bytes"), _size(context, "pool_bytes_largest")
    if not pool or not largest:
        missing = [name for name, size in (("pool_bytes", pool), ("pool_bytes_largest", largest)) if not size]
        return judged("closed.pool", False, f"the capture claims no positive, finite {' and no '.join(missing)}")
    recorded = sum(len(sizes) for sizes in context.capture.get("buckets", {}).values())
    figures = f"{pool / MIB:.2f} MiB for {recorded} buckets, {largest / MIB:.2f} MiB after the largest alone"
    if recorded < 2:
        return report("closed.pool", f"{figures}; with one bucket there is nothing to share", measured=pool)
    share = pool / largest
    message = f"the pool holds {figures}: {share:.2f} of the largest, allowed {POOL_FACTOR}"
    if share > POOL_FACTOR:
        message += (
            "; likely LIFETIME (recordings hold their intermediates, so that no bucket gives its blocks back) or "
            "CAPCOST (something is allocated and kept for every graph)"
        )
    return judged("closed.pool", share <= POOL_FACTOR, message, measured=share, threshold=POOL_FACTOR)


def _one_pool_gate(context: ProbeContext) -> GateResult:
    """Every graph that was recorded lies in one pool, by what the graphs themselves say, and that pool is the claimed
    one.
    """
    if mode_of(context) == "NONE":
        return not_applicable("closed.pools", "the cell's mode records no graph for this phase")
    pools: Mapping[Any, Sequence[str]] = context.capture.get("pools") or {}
    sizes: Mapping[str, int] = context.capture.get("pool_sizes") or {}
    if not pools:
        return not_applicable("closed.pools", "the engine's adaptor does not say in which pools its graphs lie")
    homes: dict[str, list[str]] = {}
    for bucket, names in pools.items():
        for name in names:
            homes.setdefault(name, []).append(str(bucket))
    listed = ", ".join(
        f"{sizes.get(name, 0) / MIB:.2f} MiB for bucket {' and '.join(buckets)}" for name, buckets in homes.items()
    )
    if len(homes) > 1:
        message = (
            f"the graphs lie in {len(homes)} pools ({listed}), {sum(sizes.values()) / MIB:.2f} MiB in all, and the "
            f"capture claims {_size(context, 'pool_bytes') / MIB:.2f}; likely CAPCOST: a pool made anew between buckets"
        )
        return judged("closed.pools", False, message, measured=float(len(homes)), threshold=1.0)
    whole, claimed = sum(sizes.values()), _size(context, "pool_bytes")
    message = f"all graphs lie in one pool of {whole / MIB:.2f} MiB"
    if claimed > whole:
        message = f"the capture claims {claimed / MIB:.2f} MiB, and the one pool of all graphs holds {whole / MIB:.2f}"
    return judged("closed.pools", claimed <= whole, message, measured=float(len(homes)), threshold=1.0)


def _size(context: ProbeContext, name: str) -> float:
    """The claimed bytes, or 0 for what is no size at all."""
    value = context.capture.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) and value > 0 else 0.0
