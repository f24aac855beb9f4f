"""`harness selftest`: alarms on identical code and findings of planted faults, counted, with exact bounds.

A gate nobody has seen fail is not evidence. Each number here is a count of trials on this machine; few trials make
wide bounds, and they are printed just the same.
"""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from harness.comparison.compare import rules_of
from harness.comparison.course import Course
from harness.comparison.looks import LookPlan
from harness.comparison.matrix import Outcome
from harness.comparison.paired import Budget
from harness.comparison.pairs import BASELINE, CANDIDATE
from harness.comparison.sides import AS_IT_STANDS, Side, make_side
from harness.errors import HarnessFault
from harness.job import UnitSpec
from harness.plan import SERVING, Plan, Unit, kind_of
from harness.selftest.engine import FAULT_VARIABLE
from harness.selftest.faults import SLOWER_BY
from harness.selftest.journal import Journal, Trials, Verdicts
from harness.selftest.simulation import NOISES, World, simulate
from harness.selftest.trials import Trial, TrialOrder
from harness.stats import Rate, exact_rate

SLOWER = "slower step"
PROBED = ("extra copy", "dropped graph", "recompile", "flipped bit", "stale buffer")
SAME_LINE = "identical code: verdict FAIL"
FAIL = Outcome.FAIL.value
#: Trials of one fault that share a process, and a round.
TRIALS_A_ROUND = 5
#: A process of trials that takes longer than this many seconds a trial hangs.
TRIAL_LIMIT_S = 180.0


class Effort(msgspec.Struct, frozen=True):
    """How many: verdicts of identical code, verdicts of a slower step, trials of each other fault, matrices drawn."""

    same_verdicts: int
    slower_verdicts: int
    trials: int
    matrices: int


MINUTES = Effort(same_verdicts=6, slower_verdicts=6, trials=3, matrices=200)
HOURS = Effort(same_verdicts=300, slower_verdicts=60, trials=60, matrices=2000)


class Line(msgspec.Struct, frozen=True):
    """One counted thing. `wanted` is "none" or "all", or "report" for a figure that decides nothing."""

    name: str
    hits: int
    trials: int
    wanted: str
    note: str = ""

    @property
    def rate(self) -> Rate:
        return exact_rate(self.hits, self.trials)

    @property
    def ok(self) -> bool:
        return {"none": self.hits == 0, "all": self.hits == self.trials, "report": True}[self.wanted]

    def __str__(self) -> str:
        mark = {"report": " "}.get(self.wanted, "✓" if self.ok else "✗")
        return f"{mark} {self.name}: {self.rate}{f'; {self.note}' if self.note else ''}"


@dataclass
class SelfTest:
    """`plan` is the small matrix; its first cell with a graph is where faults are put in."""

    plan: Plan
    effort: Effort
    checkout: Path
    logs: Path
    say: Callable[[str], None]
    journal: Journal
    progressed: Callable[[Sequence[Line]], None] = lambda lines: None
    _drawn: list[Line] = field(default_factory=list)

    def run(self) -> Iterable[Line]:
        """Lines as they become known. Raises `HarnessFault` where a trial gives no answer."""
        self._drawn = list(simulated(self.effort.matrices))
        yield from self._drawn
        while self._round():
            self.progressed(self.lines())
        yield from self.lines()[len(self._drawn) :]

    def lines(self) -> list[Line]:
        """Everything that was counted so far."""
        counted = [*self._drawn]
        for fault in ("", *PROBED):
            if trials := self.journal.trials(fault):
                counted.append(_probed_line(fault, trials))
        if same := self.journal.outcomes(""):
            counted.append(Line(SAME_LINE, same[FAIL], same.total(), "none", _spread(same)))
        if slower := self.journal.outcomes(SLOWER):
            missed = slower[Outcome.PASS.value] + slower[Outcome.FASTER.value]
            name = f"a step {100 * SLOWER_BY[kind_of(self.plan.device)]:.0f} % slower: verdict"
            counted.append(Line(f"{name} PASS", missed, slower.total(), "none"))
            counted.append(Line(f"{name} FAIL", slower[FAIL], slower.total(), "report", _spread(slower)))
        return counted

    def _round(self) -> bool:
        """A few of everything that is wanted still, so that a self-test that is stopped has some of each. False if
        nothing was.
        """
        before = len(self.journal.pieces)
        for fault in ("", *PROBED):
            left = self.effort.trials - len(self.journal.trials(fault))
            if left > 0:
                self._probe(fault, min(left, TRIALS_A_ROUND))
        for fault, wanted in (("", self.effort.same_verdicts), (SLOWER, self.effort.slower_verdicts)):
            if self.journal.outcomes(fault).total() < wanted:
                self._compare(fault)
        return len(self.journal.pieces) > before

    def _probe(self, fault: str, count: int) -> None:
        self.say(f"{count} trials of {fault or 'no fault'}")
        trials = self._trials(fault, count, len(self.journal.trials(fault)))
        self.journal.add(Trials(fault, [trial.failed for trial in trials]))

    def _trials(self, fault: str, count: int, done: int) -> list[Trial]:
        order = TrialOrder(
            profile=self.plan.profile,
            device=self.plan.device,
            unit=UnitSpec.of(self._graph_unit()),
            fault=fault,
            trials=count,
            seed=self.plan.profile.numerics.seed + done,
        )
        answered = subprocess.run(
            [sys.executable, "-P", "-m", "harness.selftest.trials"],
            input=msgspec.json.encode(order),
            capture_output=True,
            env=self._side("candidate").environment(self.checkout),
            timeout=TRIAL_LIMIT_S * (count + 1),
            check=False,
        )
        trials = [msgspec.json.decode(line, type=Trial) for line in answered.stdout.splitlines()]
        if len(trials) != count or not all(trial.decided for trial in trials):
            tail = answered.stderr.decode(errors="replace")[-1500:]
            raise HarnessFault(f"{len(trials)} of {count} trials of {fault or 'no fault'} answered: {tail}")
        return trials

    def _compare(self, fault: str) -> None:
        """One whole comparison from fresh pairs, each of its items a verdict."""
        number = self.journal.courses(fault) + 1
        self.say(f"comparison {number} of {fault or 'identical code'}")
        course = self._course(fault, self.logs / (fault or "same").replace(" ", "-") / str(number), number)
        outcomes = Counter(judged.outcome.value for judged in course.run().values())
        failure = next((cell.failure for cell in course.cells.values() if cell.failure), None)
        if failure is not None:
            raise HarnessFault(f"a side of the self-test failed: {failure}\n{failure.stack}")
        self.journal.add(Verdicts(fault, dict(outcomes)))

    def _course(self, fault: str, logs: Path, number: int) -> Course:
        looks, budget = rules_of(self.plan.profile, self.plan.device)
        numerics = msgspec.structs.replace(self.plan.profile.numerics, seed=self.plan.profile.numerics.seed + number)
        return Course(
            profile=msgspec.structs.replace(self.plan.profile, numerics=numerics),
            device=self.plan.device,
            sides={BASELINE: self._side("baseline"), CANDIDATE: self._side("candidate", fault)},
            units=[unit for unit in self.plan.units if unit.lane == SERVING],
            checkout=self.checkout,
            logs=logs,
            keep=lambda record: None,
            say=self.say,
            plan=looks,
            budget=budget,
            excuse_same_code=False,  # or identical code could never raise the alarm that is counted here
        )

    def _side(self, name: str, fault: str = "") -> Side:
        side = make_side(name, AS_IT_STANDS, None, self.checkout, self.logs)
        if not fault:
            return side
        variables = {"HARNESS_ENGINES": "atom_impl=harness.selftest.engine:FaultyEngine", FAULT_VARIABLE: fault}
        return dataclasses.replace(side, variables=tuple(variables.items()))

    def _graph_unit(self) -> Unit:
        return next(unit for unit in self.plan.units if unit.lane == SERVING and unit.cell["mode"] == "FULL")


def _probed_line(fault: str, trials: Sequence[Sequence[str]]) -> Line:
    seen = Counter(gate for gates in trials for gate in gates)
    note = ", ".join(f"{gate} {count}" for gate, count in seen.most_common(3))
    name = f"{fault}: found by a gate" if fault else "no fault: a gate fails"
    return Line(name, sum(map(bool, trials)), len(trials), "all" if fault else "none", note)


def _spread(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def simulated(matrices: int) -> Iterable[Line]:
    """The verdict rules alone, on drawn pair means whose truth is known."""
    looks, budget = LookPlan(), Budget(0.02)
    for noise in NOISES:
        same = simulate(World(20, 0.01, noise=noise), matrices, 1, looks, budget)
        yield Line(f"drawn, identical, {noise}: a FAIL in a matrix of 20", same.alarms.hits, matrices, "none")
        world = World(20, 0.007, math.log1p(0.05), 2, noise)
        slow = simulate(world, max(1, matrices // 4), 1, looks, budget)
        assert slow.found is not None
        assert slow.missed is not None
        yield Line(f"drawn, 5 % slower, {noise}: PASS", slow.missed.hits, slow.missed.trials, "none")
        yield Line(f"drawn, 5 % slower, {noise}: FAIL", slow.found.hits, slow.found.trials, "report")


def as_record(lines: Iterable[Line], effort: Effort, facts: dict[str, Any]) -> bytes:
    """What is kept of a self-test, as JSON with the exact bounds beside each count."""
    table = [{**msgspec.to_builtins(line), "low": line.rate.low, "high": line.rate.high} for line in lines]
    whole = {**facts, "effort": msgspec.to_builtins(effort), "lines": table}
    return msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=2) + b"\n"
