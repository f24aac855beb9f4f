"""G1: a replay gives the bits of the compiled arm on the same padded inputs, without exception.

A recording that reads a freed or stale buffer is right until somebody else uses the memory. So every replay is
judged, the first of each recording apart from the later ones, and the pattern of the wrong ones is put into words.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.probes.gates import compared_nothing, judged, not_applicable, plural
from harness.probes.numerics.arms import ArmRun
from harness.probes.numerics.bits import difference
from harness.probes.numerics.diagnosis import Replay, diagnose
from harness.records import GateResult


@dataclass(frozen=True)
class Visit:
    """Which replay this was. `bucket` is None where dispatch runs eagerly; `after` is the bucket replayed before it."""

    bucket: int | None
    set_index: int
    replay: int
    rows: int
    pad_rows: int
    after: int | None
    longest: int  # longest context in tokens
    soak: bool = False

    @property
    def name(self) -> str:
        return f"replay of bucket {self.bucket}" if self.bucket else f"eager step of {plural(self.rows, 'row')}"


class Recording:
    """Replays against the compiled arm's runs of the same input sets."""

    def __init__(self) -> None:
        self.replays: list[Replay] = []
        self.messages: dict[int, str] = {}  # step -> what is wrong with it
        self._seen: set[int] = set()
        self._answers: list[
            tuple[int, ArmRun]
        ] = []  # (set index, compiled run) of the latest sets, whatever their bucket

    def expect(self, set_index: int, compiled: ArmRun) -> None:
        """Remember a compiled run, so that a replay which repeats another step's answer is recognised."""
        self._answers = [*self._answers[-15:], (set_index, compiled)]

    def see(self, visit: Visit, compiled: ArmRun, replayed: ArmRun) -> bool:
        """Whether the replay's bits are the compiled arm's, all of them finite."""
        step = len(self.replays)
        first = visit.bucket is not None and visit.bucket not in self._seen
        if visit.bucket is not None:
            self._seen.add(visit.bucket)
        wrong = self._compare(visit, step, compiled, replayed)
        if wrong:
            self.messages[step] = wrong
        self.replays.append(
            Replay(
                step=step,
                bucket=visit.bucket,
                set_index=visit.set_index,
                padded=visit.pad_rows > 0,
                first=first,
                after=visit.after,
                longest=visit.longest,
                soak=visit.soak,
                wrong=bool(wrong),
                unwritten=bool(wrong) and bool(replayed.hidden.isnan().any() and not compiled.hidden.isnan().any()),
                stale=bool(wrong) and self._repeats_another(compiled, replayed),
                answer=hash(replayed.hidden.cpu().double().numpy().tobytes()),
            )
        )
        return not wrong

    def _compare(self, visit: Visit, step: int, compiled: ArmRun, replayed: ArmRun) -> str:
        place = f"first at step {step} (set {visit.set_index}, replay {visit.replay})"
        for (name, one), (_, two) in zip(compiled.tensors(), replayed.tensors(), strict=True):
            found = difference(one, two)
            if found is not None:
                rows = f"{len(found.rows)} of {found.total_rows} rows"
                return f"{visit.name} differs from the compiled arm in {rows}, {place}, {name} {found}"
        broken = replayed.non_finite()
        return f"{visit.name} and the compiled arm agree on NaN or infinity, {place}, {broken}" if broken else ""

    def _repeats_another(self, compiled: ArmRun, replayed: ArmRun) -> bool:
        found = difference(compiled.hidden, replayed.hidden)
        if found is None:
            return False
        row = found.rows[0]
        others = [run.hidden for _, run in self._answers if run is not compiled and run.hidden.shape[0] > row]
        return any(difference(other[row : row + 1], replayed.hidden[row : row + 1]) is None for other in others)

    def results(self, *, recorded: bool, soak: bool) -> list[GateResult]:
        """`recorded`: the cell's mode records graphs for this phase. `soak`: a soak was asked for."""
        first = [r for r in self.replays if r.first]
        later = [r for r in self.replays if not r.first and not r.soak]
        gates = [self._judge("G1", later, "later replays" if recorded else "steps through the engine's dispatch")]
        if recorded:
            gates.append(self._judge("G1.first", first, "first replays after capture"))
        else:
            gates.append(
                not_applicable(
                    "G1.first", "the cell's mode records no graph for this phase, so none has a first replay"
                )
            )
        if soak:
            gates.append(self._judge("G1.soak", [r for r in self.replays if r.soak], "replays of the soak"))
        return gates

    def _judge(self, gate: str, replays: list[Replay], what: str) -> GateResult:
        if not replays:
            return compared_nothing(gate, f"no {what} were driven")
        wrong = [r for r in replays if r.wrong]
        counts = {"compared": len(replays), "wrong": len(wrong), "wrong_steps": [r.step for r in wrong][:64]}
        if not wrong:
            message = f"all {plural(len(replays), 'comparison')} of {what} have the bits of the compiled arm"
            return judged(gate, True, message, measured=0.0, threshold=0.0, evidence=counts)
        text = self.messages[wrong[0].step]
        message = f"{text}; {len(wrong)} of {len(replays)} {what} are wrong; {diagnose(self.replays)}"
        where = f"step {wrong[0].step}, bucket {wrong[0].bucket}, set {wrong[0].set_index}"
        return judged(gate, False, message, measured=float(len(wrong)), threshold=0.0, where=where, evidence=counts)
