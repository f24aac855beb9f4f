"""G7, a report: how far the compiled arm's bits are from eager's, and where they first part.

It gates nothing. A red G3 without the first differing layer has cost days of bisection.
"""

from __future__ import annotations

from harness.probes.gates import compared_nothing, report
from harness.probes.numerics.arms import ArmRun
from harness.probes.numerics.bits import difference, equal_share, max_ulp
from harness.records import GateResult


class Distance:
    """Pairs of eager and compiled runs of the same step, both padded alike."""

    def __init__(self) -> None:
        self.ulp: dict[str, int] = {}
        self.equal: dict[str, list[float]] = {}
        self.first_layer: int | None = None  # the first KV tensor that differs, in the session's order
        self.pairs = 0

    def see(self, eager: ArmRun, compiled: ArmRun) -> None:
        self.pairs += 1
        for name, one, two in (
            ("hidden", eager.hidden, compiled.hidden),
            ("logits", eager.logits, compiled.logits),
        ):
            self.ulp[name] = max(self.ulp.get(name, 0), max_ulp(one, two))
            self.equal.setdefault(name, []).append(equal_share(one, two))
        for index, (one, two) in enumerate(zip(eager.kv, compiled.kv, strict=True)):
            if difference(one, two) is not None:
                self.first_layer = index if self.first_layer is None else min(index, self.first_layer)
                return

    def result(self) -> GateResult:
        if not self.pairs:
            return compared_nothing("G7", "no step was run in both arms E and C")
        share = {name: sum(values) / len(values) for name, values in self.equal.items()}
        parts = [f"{name} {100 * share[name]:.1f} % equal bits, at most {self.ulp[name]} ulp apart" for name in share]
        first = (
            "no KV tensor differs"
            if self.first_layer is None
            else f"KV tensor {self.first_layer} is the first to differ"
        )
        return report(
            "G7",
            f"arm C against arm E: {'; '.join(parts)}; {first}",
            measured=float(max(self.ulp.values())),
            evidence={"max_ulp": self.ulp, "equal_share": share, "first_kv_tensor": self.first_layer},
        )
