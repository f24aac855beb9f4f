"""G5: teacher-forced logits over the full vocabulary; the compiled arm's divergence from float64 against eager's own.

Limits on KL in nats depend on depth and vocabulary; a multiple of eager's own divergence does not.
"""

from __future__ import annotations

import torch

from harness.probes.gates import compared_nothing, judged, plural
from harness.probes.numerics.evidence import Evidence
from harness.records import GateResult
from harness.stats import percentile

FACTOR = 3.0
SLACK_NATS = 1e-6


def logits_gate(evidence: Evidence) -> GateResult:
    if not len(evidence):
        return compared_nothing("G5", "no logits were compared with arm REF")
    rows = evidence.rows()
    eager, compiled = rows.eager.kl, rows.compiled.kl
    bad = ~(torch.isfinite(eager) & torch.isfinite(compiled))
    if bool(bad.any()):
        where = evidence.labels[int(bad.nonzero()[0])]
        return judged("G5", False, f"the divergence of arm E or C from float64 is not a number: {where}", where=where)
    checks = {
        "mean": (float(compiled.mean()), float(eager.mean())),
        "p99.9": (percentile(compiled.tolist(), 99.9, "KL"), percentile(eager.tolist(), 99.9, "KL")),
    }
    limits = {name: FACTOR * ruler + SLACK_NATS for name, (_, ruler) in checks.items()}
    worst = max(checks, key=lambda name: checks[name][0] / limits[name])
    found, ruler = checks[worst]
    message = (
        f"KL(REF, C) over {plural(len(evidence), 'position')}: {worst} {found:.3g} nats, allowed {limits[worst]:.3g} "
        f"(eager's own {ruler:.3g}); the worst position is {evidence.labels[int(compiled.argmax())]}"
    )
    return judged(
        "G5",
        all(checks[name][0] <= limits[name] for name in checks),
        message,
        measured=found,
        threshold=limits[worst],
        where=evidence.labels[int(compiled.argmax())],
        evidence={name: {"compiled": c, "eager": e, "allowed": limits[name]} for name, (c, e) in checks.items()},
    )
