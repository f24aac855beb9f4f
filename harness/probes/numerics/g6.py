"""G6: the chosen token may differ from eager's only at a near tie, as near as eager's own rounding there.

A flip with a wide margin is a fault, a flip at a tie is rounding. An excuse of 6 * max excused most positions and so
nothing was gated; 6 * rms excuses about a quarter, and the share is always said.
"""

from __future__ import annotations

import torch

from harness.probes.gates import compared_nothing, judged, plural
from harness.probes.numerics.evidence import Evidence
from harness.records import GateResult

FACTOR = 6.0


def token_gate(evidence: Evidence) -> GateResult:
    if not len(evidence):
        return compared_nothing("G6", "no tokens were compared with arm E")
    rows = evidence.rows()
    excuse = FACTOR * rows.eager.noise
    flips = rows.eager.argmax != rows.compiled.argmax
    excused = rows.eager.margin < excuse
    # NaN excuses nothing: the comparison above is false for it, and a NaN row is a fault by itself.
    broken = ~(torch.isfinite(rows.eager.margin) & torch.isfinite(rows.compiled.margin) & torch.isfinite(excuse))
    wrong = (flips & ~excused) | broken
    share = float(excused.double().mean())
    figures = {"positions": len(evidence), "flips": int(flips.sum()), "excused_share": share}
    scope = f"{100 * share:.0f} % of {plural(len(evidence), 'position')} lie near a tie and may differ"
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        where = evidence.labels[first]
        chosen, wanted = int(rows.compiled.argmax[first]), int(rows.eager.argmax[first])
        message = (
            f"arm C chooses token {chosen} where eager chooses {wanted} with a margin of "
            f"{float(rows.eager.margin[first]):.3g} (excused below {float(excuse[first]):.3g}): {where}; "
            f"{plural(int(wrong.sum()), 'unexplained flip')}; {scope}"
        )
        return judged("G6", False, message, measured=float(wrong.sum()), threshold=0.0, where=where, evidence=figures)
    message = f"no unexplained token flip, {int(flips.sum())} excused; {scope}"
    return judged("G6", True, message, measured=0.0, threshold=0.0, evidence=figures)
