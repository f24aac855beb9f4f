"""`python -m harness.selftest.trials`: open one cell again and again, with one fault or none, and judge by every gate.

The order comes as JSON on stdin; one JSON line a trial leaves on stdout. A process of its own, so that a fault which
kills it is an outcome of that fault.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from harness.job import UnitSpec
from harness.plan import kind_of
from harness.profile import Profile
from harness.records import Status


class TrialOrder(msgspec.Struct, frozen=True):
    profile: Profile
    device: str
    unit: UnitSpec
    fault: str  # empty: the control
    trials: int
    seed: int


class Trial(msgspec.Struct, frozen=True):
    """Which gates failed; none in a sound control."""

    seed: int
    failed: list[str]
    decided: int


def run_trial(order: TrialOrder, seed: int, engine: Any) -> Trial:
    """One session from open to close. The fault is put in once the session has captured."""
    from harness.engines.base import SessionSpec
    from harness.probes import measure
    from harness.probes.base import ProbeContext
    from harness.selftest.faults import put_into
    from harness.soundness import plain

    numerics = msgspec.structs.replace(order.profile.numerics, seed=seed)
    profile = msgspec.structs.replace(order.profile, numerics=numerics)
    unit = order.unit.unit()
    spec = SessionSpec.of(profile, unit.dtype, order.device)
    session = engine.open(unit.cell, spec)
    try:
        capture = plain(session.capture())
        if order.fault:
            put_into(session, order.fault, seed)
        gates = measure(
            ProbeContext(session, unit.cell, spec, profile, unit.lane, kind_of(order.device), capture)
        ).gates
    finally:
        session.close()
    failed = [gate.gate for gate in gates if gate.status is Status.FAIL]
    return Trial(seed, failed, sum(gate.status in (Status.PASS, Status.FAIL) for gate in gates))


def main() -> int:
    from harness.plugins import find_engine

    order = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialOrder)
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not stand between the lines of the answer
    engine = find_engine(str(order.unit.unit().cell["engine"]))
    for number in range(order.trials):
        out.write(msgspec.json.encode(run_trial(order, order.seed + number, engine)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
