"""Which sizes a cell is driven in, and what the harness itself expects of dispatch there."""

from __future__ import annotations

from harness.coverage import Route, route
from harness.engines.base import Phase
from harness.probes.base import ProbeContext
from harness.profile import MODES


def phase_of(context: ProbeContext) -> Phase:
    """The phase whose steps the cell's workload consists of."""
    return Phase.PREFILL if context.cell["workload"] == "prefill" else Phase.DECODE


def mode_of(context: ProbeContext) -> str:
    """What the cell's mode asks of a step of its workload, by the name of a plain graph mode."""
    decode, prefill = MODES[context.cell["mode"]]
    return prefill if phase_of(context) is Phase.PREFILL else decode


def buckets_of(context: ProbeContext) -> list[int]:
    """The cell's sizes, ascending: requests for decode, tokens for prefill. Without graphs they are only driven."""
    if phase_of(context) is Phase.PREFILL:
        sizes, where = context.spec.prefill_sizes, "the profile's prefill_sizes"
    else:
        sizes, where = context.cell["ladder"] or (), "the cell's ladder"
    if not sizes:
        raise ValueError(
            f"cell {context.cell.id}: {where} is empty, so there is no size to measure; give it at least one"
        )
    return sorted(sizes)


def expected_route(context: ProbeContext, size: int) -> Route:
    """Where a step of `size` requests (decode) or tokens (prefill) must run, by the harness's own arithmetic."""
    return route(size, mode_of(context), buckets_of(context), context.spec.eager_above_ladder)
