"""G4: does the bucket change eager's arithmetic? E(n) and E(N) under the rule of G3.

Without it a kernel that rounds differently at another row count is blamed on the compiler or on the graph.
"""

from __future__ import annotations

from harness.probes.gates import compared_nothing, not_applicable
from harness.probes.numerics.evidence import Evidence
from harness.probes.numerics.g3 import error_gate
from harness.records import GateResult


def batch_gate(evidence: Evidence, *, padded: bool) -> GateResult:
    """`evidence` holds E(n) as its eager rows and E(N) as its compiled rows. `padded`: some bucket has pad rows."""
    if not padded:
        return not_applicable("G4", "no step of this cell is padded, so E(n) and E(N) are the same step")
    if not len(evidence):
        return compared_nothing("G4", "no step was run in arm E both padded and unpadded")
    rows = evidence.rows()
    return error_gate("G4", "arm E padded to its bucket", "arm E at its own size", rows.eager, rows.compiled, evidence)
