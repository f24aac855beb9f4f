"""G2: live rows depend neither on pad rows nor on cache slots that nobody owns, and pad rows write nothing.

Pad rows left NaN in a reduction over the bucket, or with slot -1 in an indexed write, corrupt other requests while
the step that did it looks right.
"""

from __future__ import annotations

from collections import Counter

from harness.engines.base import Arm
from harness.probes.gates import compared_nothing, judged, plural
from harness.probes.numerics.arms import ArmRun
from harness.probes.numerics.bits import difference
from harness.records import GateResult


class Padding:
    """Runs whose pad rows or unowned cache slots were changed, against the same arm's ordinary run."""

    def __init__(self) -> None:
        self.compared: Counter[str] = Counter()  # by what was changed
        self.wrong: list[str] = []
        self.wrong_arms: set[Arm] = set()
        self.steps = 0
        self.strays: list[str] = []
        self.stray_arms: set[Arm] = set()
        self.stale_strays = 0

    def see(self, changed: str, bucket: int, ordinary: ArmRun, run: ArmRun) -> None:
        """`changed` says what was put where nothing may be read, for instance "pad rows: extreme"."""
        self.compared[f"{run.arm.value}, {changed}"] += 1
        if broken := ordinary.non_finite():
            # Two equal NaNs prove nothing about padding.
            self.wrong.append(f"arm {run.arm.value} at bucket {bucket} is not finite with ordinary pad rows: {broken}")
            return
        for (name, one), (_, two) in zip(ordinary.tensors(), run.tensors(), strict=True):
            found = difference(one, two)
            if found is not None:
                self.wrong_arms.add(run.arm)
                nan = f", {found.nan_elements} of them NaN" if found.nan_elements else ""
                self.wrong.append(
                    f"arm {run.arm.value} at bucket {bucket} changes when the harness changes {changed}: "
                    f"{len(found.rows)} of {found.total_rows} live rows, first {name} {found}{nan}"
                )
                return

    def watch(self, run: ArmRun, bucket: int | None) -> None:
        """Every driven step passes here: did it write a slot that none of its live rows owns?"""
        self.steps += 1
        if run.stray is not None:
            self.stray_arms.add(run.arm)
            self.stale_strays += run.stray.of_last_step
            where = f"at bucket {bucket}" if bucket else "without padding"
            self.strays.append(
                f"arm {run.arm.value} {where} wrote a cache slot that no live row of the step owns: {run.stray}"
            )

    def results(self, *, padded: bool) -> list[GateResult]:
        """`padded`: some bucket of the cell has room for pad rows."""
        return [self._rows(padded), self._cache()]

    def _rows(self, padded: bool) -> GateResult:
        total = sum(self.compared.values())
        evidence = {"compared": dict(self.compared), "wrong": self.wrong[:16]}
        if not total or (padded and not any("pad rows" in key for key in self.compared)):
            return compared_nothing("G2", "no step with changed pad rows was driven")
        if self.wrong:
            kind = "; nothing about padding is proved" if "not finite" in self.wrong[0] else f"; likely {self._kind()}"
            message = f"{self.wrong[0]}; {len(self.wrong)} of {total} comparisons failed{kind}"
            return judged("G2", False, message, measured=float(len(self.wrong)), threshold=0.0, evidence=evidence)
        scope = "" if padded else " (no bucket has pad rows: only unowned cache slots were changed)"
        message = (
            f"live rows keep their bits in {plural(total, 'comparison')} with changed pad rows and cache slots{scope}"
        )
        return judged("G2", True, message, measured=0.0, threshold=0.0, evidence=evidence)

    def _kind(self) -> str:
        others = any(key.partition(",")[0] != Arm.R.value for key in self.compared)
        if self.wrong_arms == {Arm.R} and others:
            return "PADDING in the recording alone (a FROZEN number of live rows, or a STALE tail that it reads)"
        return "PADDING"

    def _stray_kind(self) -> str:
        """Who wrote: every arm alike, the recording alone, or a tail that the step before left."""
        if 2 * self.stale_strays > len(self.strays):
            return "STALE (the slot of a row of the step before: the tail was not rewritten), or PADDING"
        if self.stray_arms == {Arm.R}:
            return "FROZEN (replays alone do it: the recording does not see which rows are live), or PADDING"
        return "PADDING (a pad row's slot)"

    def _cache(self) -> GateResult:
        if not self.steps:
            return compared_nothing("G2.kv", "no step was driven")
        if self.strays:
            message = f"{self.strays[0]}; {len(self.strays)} of {self.steps} steps did; likely {self._stray_kind()}"
            return judged("G2.kv", False, message, measured=float(len(self.strays)), threshold=0.0)
        message = f"{plural(self.steps, 'step')} wrote no cache slot but their live rows' own"
        return judged("G2.kv", True, message, measured=0.0, threshold=0.0)
