"""Nothing that is not a number passes, and nothing is lost on the way to the record.

JSON has no NaN: an accuracy column full of it was written as null, read as "no failure", and published as a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from harness.records import GateResult, Latency, Status


def plain(value: Any) -> Any:
    """`value` as what JSON carries without loss: keys are text, numbers are Python's, NaN and infinities are words."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, int)):  # a subclass, such as torch's version, cannot be written as it is
        return str(value) if isinstance(value, str) else int(value)
    if hasattr(value, "tolist"):  # a tensor or a numpy scalar
        return plain(value.tolist())
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else str(value)


def sound_gate(gate: GateResult) -> GateResult:
    """The gate as it may be recorded: a pass that was measured as NaN or infinity is a failure."""
    evidence = plain(gate.evidence)
    changes: dict[str, Any] = {"evidence": evidence}
    for name in ("measured", "threshold"):
        figure = getattr(gate, name)
        if figure is None or math.isfinite(figure):
            continue
        evidence[name] = str(float(figure))
        changes[name] = None
        if gate.status is Status.PASS and (name == "measured" or math.isnan(figure)):
            changes |= {"status": Status.FAIL, "message": f"{name} is {figure}, which is never a pass: {gate.message}"}
    return msgspec.structs.replace(gate, **changes)


def sound_latencies(latencies: Sequence[Latency]) -> tuple[list[Latency], list[GateResult]]:
    """Latencies that hold numbers, and one failed gate for each that does not."""
    kept, faults = [], []
    for item in latencies:
        figures = [item.median_us, item.p25_us, item.p75_us, *item.samples_us]
        if item.samples_us and all(math.isfinite(f) and f > 0 for f in figures):
            kept.append(item)
            continue
        where = f"arm {item.arm}, {item.phase}, batch {item.batch}, bucket {item.bucket}"
        message = f"the latency of {where} holds no samples, or one that is not a positive number"
        faults.append(GateResult(gate="fault.latency", status=Status.FAIL, message=message, where=where))
    return kept, faults
