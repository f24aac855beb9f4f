"""G3 and G4: is the compiler's error, or the bucket's, no worse than eager's own distance from float64?

A norm epsilon of 1e-2 and a 1 % slip in one layer passed every bfloat16 gate; in float32, through the same pipeline,
this rule sees them by three orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.probes.gates import compared_nothing, judged, plural
from harness.probes.numerics.error_rule import Finding, judge
from harness.probes.numerics.evidence import Evidence
from harness.probes.numerics.figures import RowFigures
from harness.records import GateResult


def compiler_gate(evidence: Evidence) -> GateResult:
    """G3: arm C against the ruler E."""
    if not len(evidence):
        return compared_nothing("G3", "no step was run in arms E, C and REF")
    rows = evidence.rows()
    return error_gate("G3", "arm C", "arm E", rows.eager, rows.compiled, evidence)


def recording_by_error(evidence: Evidence) -> GateResult:
    """G1 where the compiled arm does not repeat its bits: arm R under the rule of G3."""
    if not len(evidence):
        return compared_nothing("G1", "no step was run in arms E, R and REF")
    rows = evidence.rows()
    return error_gate("G1", "arm R (G0 failed, so judged by error)", "arm E", rows.eager, rows.replayed, evidence)


def error_gate(
    gate: str, who: str, ruler_name: str, ruler: RowFigures, candidate: RowFigures, evidence: Evidence
) -> GateResult:
    """One gate over all rows: the class of NaN and infinity first, then the error rule on hidden and logits."""
    broken = _broken(ruler, candidate, evidence.labels)
    if broken:
        blame = (
            "" if gate != "G3" else "; likely CONTRACT or NUMERICS: compiled code reads what nobody wrote, or overflows"
        )
        ours = bool(_broken(candidate, candidate, evidence.labels)) and not _broken(ruler, ruler, evidence.labels)
        culprit = who if ours else f"{who} or {ruler_name}"
        return judged(
            gate,
            False,
            f"{culprit} is NaN or infinite where float64 is not: {broken}{blame if ours else ''}",
            where=broken,
        )
    findings = judge(ruler, candidate, evidence.dtype, evidence.widths)
    # Of several that are beyond their limit a row is named before a whole tensor: it is a place to look.
    worst = max(findings, key=lambda finding: (not finding.ok and finding.row is not None, finding.share))
    place = "" if worst.row is None else f" ({evidence.labels[worst.row]})"
    ok = all(finding.ok for finding in findings)
    message = f"{who} against {ruler_name} over {plural(len(ruler), 'row')}: {worst}{place}"
    if not ok and gate == "G3":
        message += "; likely NUMERICS or CONTRACT: the compiled code computes something else than the eager model"
    return judged(
        gate,
        ok,
        message,
        measured=worst.error,
        threshold=worst.allowed,
        where=place.strip(" ()") or worst.tensor,
        evidence=_figures(findings, len(ruler)),
    )


def _figures(findings: Sequence[Finding], rows: int) -> dict[str, object]:
    figures: dict[str, object] = {"rows": rows}
    for finding in findings:
        kind = "whole" if finding.row is None else "worst_row"
        figures[f"{finding.tensor}_{kind}"] = {"error": finding.error, "allowed": finding.allowed}
        figures[f"{finding.tensor}_ratio"] = finding.ratio
    return figures


def _broken(ruler: RowFigures, candidate: RowFigures, labels: Sequence[str]) -> str:
    bad = ruler.class_change | candidate.class_change
    for table in (ruler, candidate):
        for values in (table.hidden_error, table.logits_error):
            bad = bad | ~torch.isfinite(values)
    return labels[int(bad.nonzero()[0])] if bool(bad.any()) else ""
