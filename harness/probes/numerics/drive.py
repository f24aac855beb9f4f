"""Drive the arms over a stream of rounds and hand every run to the gates that judge it.

The order of steps is the test: buckets interleave in the shared pool, the compiled answers are taken before any
replay of the round, and the step before a replay never has the same request in the same row.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness.engines.base import Arm, PadFill, StepBatch
from harness.probes.numerics.arms import ArmRun, Bench
from harness.probes.numerics.effort import Effort
from harness.probes.numerics.evidence import Evidence, Rows
from harness.probes.numerics.figures import row_figures
from harness.probes.numerics.g0 import Repeat
from harness.probes.numerics.g1 import Recording, Visit
from harness.probes.numerics.g2 import Padding
from harness.probes.numerics.g7 import Distance
from harness.workloads import InputSet, Round, Stream, interleaved

#: The previous step's tail comes first: it needs a full step of other requests right before it.
PAD_FILLS = (PadFill.PREVIOUS, PadFill.ZERO, PadFill.EXTREME, PadFill.NAN_HIDDEN)


@dataclass
class Judges:
    """What collects the evidence of each gate."""

    repeat: Repeat
    recording: Recording
    padding: Padding
    distance: Distance
    compiler: Evidence  # eager, compiled, replayed rows for G3, G5, G6
    batch: Evidence  # E(n), E(N) rows for G4


class Driver:
    """`recorded`: arm R replays graphs in this phase, and so pads to the buckets."""

    def __init__(self, bench: Bench, judges: Judges, effort: Effort, *, recorded: bool, seed: int) -> None:
        self.bench, self.judges, self.effort, self.recorded = bench, judges, effort, recorded
        self.rng = random.Random(seed)
        self.last_bucket: int | None = None

    def run(self, stream: Stream) -> None:
        for batch in stream.contexts():
            self.bench.advance(batch)
        for current in stream.rounds():
            self._round(current, last=current.index == stream.count - 1)

    def _round(self, current: Round, *, last: bool) -> None:
        references = [self._run(batch, Arm.REF, None) for batch in current.references]
        eager = [self._run(s.batch, Arm.E, s.bucket) if s.reference is not None else None for s in current.sets]
        compiled = [self._run(s.batch, Arm.C, s.bucket) for s in current.sets]
        for index, run in enumerate(compiled):
            self.judges.recording.expect(self._number(current, index), run)
        if current.index == 0:
            self._repeat(current, eager, compiled)
        for narrow in current.narrow:
            self._narrow(narrow, references)
        beyond = self._run(current.beyond, Arm.C, None) if current.beyond else None
        following = self.bench.grown(current.advance) if current.advance else None

        replayed = self._interleave(current, compiled)
        if current.beyond is not None and beyond is not None:
            self._replay(current.beyond, beyond, set_index=self._number(current, len(current.sets)), bucket=None)
        if current.vary_padding:
            # Without graphs arm R takes no padded size; the compiled arm stands in for it.
            for s, run in zip(current.sets, replayed if self.recorded else compiled, strict=True):
                self._vary(s, run)
        for index, s in enumerate(current.sets):
            self._collect(current, s, references, eager[index], compiled[index], replayed[index])
        if last:
            self._soak(current, compiled)
        if following is not None:
            self.bench.state = following
            following.restore(self.bench.session.kv())

    def _run(self, batch: StepBatch, arm: Arm, rows: int | None) -> ArmRun:
        run = self.bench.answer(batch, arm, rows)
        self.judges.padding.watch(run, rows)
        return run

    def _afresh(self, batch: StepBatch, arm: Arm, rows: int | None) -> ArmRun:
        run = self.bench.run(batch, arm, rows=rows)
        self.judges.padding.watch(run, rows)
        return run

    def _number(self, current: Round, index: int) -> int:
        return current.index * (len(current.sets) + 1) + index

    def _repeat(self, current: Round, eager: Sequence[ArmRun | None], compiled: Sequence[ArmRun]) -> None:
        for s, once, run in zip(current.sets, eager, compiled, strict=True):
            first = once or self._run(s.batch, Arm.E, s.bucket)
            self.judges.repeat.see(s.bucket, first, self._afresh(s.batch, Arm.E, s.bucket))
            self.judges.repeat.see(s.bucket, run, self._afresh(s.batch, Arm.C, s.bucket))

    def _narrow(self, s: InputSet, references: list[ArmRun]) -> None:
        """A step in a bucket that dispatch would not choose for it, in the arms that can be told to pad."""
        ordinary = self._run(s.batch, Arm.C, s.bucket)
        self._vary(s, ordinary)
        if s.reference is not None:
            self._batch_rows(s, references[s.reference], self._run(s.batch, Arm.E, s.bucket))

    def _interleave(self, current: Round, compiled: list[ArmRun]) -> list[ArmRun]:
        """A, B, A, C, A with another bucket as A each round. Returns the first replay of every set."""
        indices = list(range(len(current.sets)))
        main = indices[current.index % len(indices)]
        first: dict[int, ArmRun] = {}
        for index in interleaved(indices, self.effort.replays, main):
            s = current.sets[index]
            bucket = s.bucket if self.recorded else None
            run = self._replay(s.batch, compiled[index], set_index=self._number(current, index), bucket=bucket)
            first.setdefault(index, run)
        return [first[index] for index in indices]

    def _replay(
        self, batch: StepBatch, compiled: ArmRun, *, set_index: int, bucket: int | None, soak: bool = False
    ) -> ArmRun:
        run = self.bench.replay(batch)
        self.judges.padding.watch(run, bucket)
        seen = sum(r.set_index == set_index for r in self.judges.recording.replays)
        pad_rows = bucket - batch.rows if bucket else 0
        longest = max(batch.context_lens)
        visit = Visit(bucket, set_index, seen, batch.rows, pad_rows, self.last_bucket, longest, soak)
        self.judges.recording.see(visit, compiled, run)
        self.last_bucket = bucket
        return run

    def _vary(self, s: InputSet, ordinary: ArmRun) -> None:
        """Change what lies in pad rows and in unowned cache slots, in the arm that gave `ordinary`."""
        if s.pad_rows:
            for fill in PAD_FILLS:
                if fill is PadFill.PREVIOUS:
                    self._again(s, s.full, ordinary.arm)
                run = self._again(s, s.batch, ordinary.arm, pad=fill)
                self.judges.padding.see(f"pad rows: {fill.value}", s.bucket, ordinary, run)
        run = self._again(s, s.batch, ordinary.arm, poison_unowned=True)
        self.judges.padding.see("unowned cache slots: NaN", s.bucket, ordinary, run)

    def _again(
        self,
        s: InputSet,
        batch: StepBatch,
        arm: Arm,
        *,
        pad: PadFill = PadFill.ENGINE,
        poison_unowned: bool = False,
    ) -> ArmRun:
        if arm is Arm.R:
            run = self.bench.replay(batch, pad=pad, poison_unowned=poison_unowned)
            self.last_bucket = s.bucket
        else:
            run = self.bench.run(batch, arm, rows=s.bucket, pad=pad, poison_unowned=poison_unowned)
        self.judges.padding.watch(run, s.bucket)
        return run

    def _collect(
        self,
        current: Round,
        s: InputSet,
        references: list[ArmRun],
        eager: ArmRun | None,
        compiled: ArmRun,
        replayed: ArmRun,
    ) -> None:
        if s.reference is None or eager is None:
            return
        reference = references[s.reference]
        self.judges.distance.see(eager, compiled)
        rows = Rows(
            row_figures(eager, reference, s.reference_rows),
            row_figures(compiled, reference, s.reference_rows),
            row_figures(replayed, reference, s.reference_rows),
        )
        self._widths(self.judges.compiler, compiled)
        self.judges.compiler.add(f"set {self._number(current, current.sets.index(s))}, bucket {s.bucket},", rows)
        if s.pad_rows:
            self._batch_rows(s, reference, eager)

    def _batch_rows(self, s: InputSet, reference: ArmRun, padded: ArmRun) -> None:
        alone = row_figures(self._run(s.batch, Arm.E, None), reference, s.reference_rows)
        wide = row_figures(padded, reference, s.reference_rows)
        self._widths(self.judges.batch, padded)
        self.judges.batch.add(f"{s.batch.rows} in bucket {s.bucket},", Rows(alone, wide, wide))

    @staticmethod
    def _widths(evidence: Evidence, run: ArmRun) -> None:
        evidence.widths = {"hidden": run.hidden.shape[1], "logits": run.logits.shape[1]}

    def _soak(self, current: Round, compiled: list[ArmRun]) -> None:
        for _ in range(self.effort.soak_steps):
            index = self.rng.randrange(len(current.sets))
            s = current.sets[index]
            bucket = s.bucket if self.recorded else None
            self._replay(s.batch, compiled[index], set_index=self._number(current, index), bucket=bucket, soak=True)
