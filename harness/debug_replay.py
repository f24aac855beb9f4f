"""A run whose segments run eagerly through the real replay path, which tells bookkeeping faults from kernel faults.

Its gates are green for a kernel that a capture holds wrongly, which is what it is for, and why such a run once read as
a sign-off of graphs that nobody had replayed. So the record says what it was, and the verdict is never a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import GateResult, LaneRecord, RunHeader, Status

#: The key of `SessionSpec.options` that asks for it, and of `EngineSession.capture()` that confirms it.
OPTION = "debug_replay"
#: What says nothing where no graph is launched: the sizes, times and launches of recorded graphs.
MEANINGLESS = ("closed.pool", "latency", "audit")
#: Probes by name that measure those.
SKIPPED_PROBES = ("memory", "latency", "audit")


def is_debug_replay(capture: dict[str, object]) -> bool:
    """Whether an engine's `capture()` says that its segments run eagerly."""
    return bool(capture.get(OPTION))


def gates_left_out() -> list[GateResult]:
    reason = "debug replay: every segment runs eagerly, so no graph was launched, timed or sized"
    return [GateResult(gate=gate, status=Status.NOT_APPLICABLE, message=reason) for gate in MEANINGLESS]


def problems(header: RunHeader, lanes: Sequence[LaneRecord]) -> list[str]:
    """Why a run of this kind is no sign-off, for a verdict; empty for a run that replayed its graphs."""
    captured = [lane for lane in lanes if lane.capture]
    debug = [lane for lane in captured if is_debug_replay(lane.capture)]
    found = []
    if debug:
        found.append(
            f"Debug replay in {len(debug)} of {len(captured)} lanes: every segment ran eagerly through the replay path "
            "and no recorded kernel was replayed. What is green here is the bookkeeping; it signs nothing off."
        )
    if OPTION in header.filters and len(debug) < len(captured):
        cell = next(lane.cell for lane in captured if not is_debug_replay(lane.capture))
        found.append(f"Debug replay was asked for and the engine of {cell} does not say that it did it.")
    return found
