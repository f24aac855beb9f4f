"""G0: does an arm give the same bits twice?

If not, a replay that differs proves nothing: an atomic sum was reported as a graph fault. G1 then falls back to G3's
rule.
"""

from __future__ import annotations

from harness.engines.base import Arm
from harness.probes.gates import compared_nothing, judged, plural, report
from harness.probes.numerics.arms import ArmRun
from harness.probes.numerics.bits import difference
from harness.records import GateResult


class Repeat:
    """Pairs of runs of one arm on the same inputs and the same cache."""

    def __init__(self) -> None:
        self.pairs = 0
        self.unstable: dict[Arm, str] = {}  # arm -> the first place where its two runs differ

    def see(self, bucket: int, first: ArmRun, second: ArmRun) -> None:
        self.pairs += 1
        for (name, one), (_, two) in zip(first.tensors(), second.tensors(), strict=True):
            found = difference(one, two)
            if found is not None:
                self.unstable.setdefault(first.arm, f"arm {first.arm.value}, bucket {bucket}, {name} {found}")
                return

    @property
    def compiled_repeats(self) -> bool:
        return Arm.C not in self.unstable

    def results(self) -> list[GateResult]:
        if not self.pairs:
            return [compared_nothing("G0", "no step was run twice")]
        if self.unstable:
            where = "; ".join(self.unstable.values())
            effect = "" if self.compiled_repeats else "; G1 is judged by the rule of G3 instead of by bits"
            return [report("G0", f"two runs on the same inputs differ: {where}{effect}", where=where)]
        return [judged("G0", True, f"arms E and C repeat bit for bit in {plural(self.pairs, 'pair')} of runs")]
