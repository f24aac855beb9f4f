"""The course of a comparison: pairs until every item is decided or the looks are spent, then FAILs once more, afresh.

One slow night of a shared machine was bisected for two days. A FAIL is measured again from new processes before it is
said, and code that is the same on both sides cannot regress: then the machine is suspected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.comparison.looks import LookPlan
from harness.comparison.matrix import Judgement, Outcome, confirm, judge, still_open
from harness.comparison.paired import Budget
from harness.comparison.pairs import BASELINE, CANDIDATE, OpenedPair, ProcessPair, item_of
from harness.comparison.peer import SideFailed
from harness.comparison.sides import Side, same_code, what_changed
from harness.plan import Unit, batches
from harness.profile import Profile
from harness.records import Fate, PairRecord

SAME_CODE = "the same code, interpreter and artefacts on both sides, so the machine is slower and not the engine"


@dataclass
class CellCourse:
    """What is known of one cell: its latest opening, or how a side failed it."""

    unit: Unit
    opened: OpenedPair | None = None
    failure: SideFailed | None = None

    @property
    def changed(self) -> list[str]:
        if self.opened is None:
            return []
        return what_changed(self.opened.artefacts[BASELINE], self.opened.artefacts[CANDIDATE])


@dataclass
class Course:
    """Runs one comparison. Every pair goes to `keep` at once; `say` is told what is going on."""

    profile: Profile
    device: str
    sides: dict[str, Side]
    units: Sequence[Unit]
    checkout: Path
    logs: Path
    keep: Callable[[PairRecord], None]
    say: Callable[[str], None]
    plan: LookPlan
    budget: Budget
    open_pair: Callable[..., ProcessPair] = ProcessPair
    excuse_same_code: bool = True  # the self-test counts alarms on identical code, so it excuses none
    samples: dict[str, list[float]] = field(default_factory=dict)
    again: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    first_pairs: set[int] = field(default_factory=set)  # numbers of pairs that `restore` took up
    fresh_pairs: set[int] = field(default_factory=set)  # the same of re-measurements

    def __post_init__(self) -> None:
        self.cells = {unit.cell.id: CellCourse(unit) for unit in self.units}
        missing = next((side for side in self.sides.values() if side.missing), None)
        if missing is not None:
            for cell in self.cells.values():
                cell.failure = SideFailed(missing, Fate.UNSUPPORTED, missing.missing)

    def restore(self, pairs: Iterable[PairRecord]) -> None:
        """Take up pairs that an earlier process of this very comparison measured before it was killed."""
        for pair in pairs:
            if pair.cell not in self.cells or self.cells[pair.cell].failure is not None:
                continue
            store = self.again if pair.again else self.samples
            store.setdefault(pair.item, []).append(pair.log_ratio)
            counted = self.fresh_pairs if pair.again else self.first_pairs
            counted.add(pair.number)
            cell = self.cells[pair.cell]
            cell.opened = OpenedPair(cell.unit, pair.phase, pair.artefacts)
            self.versions = pair.versions

    def run(self) -> dict[str, Judgement]:
        """Every item's last word. Cells that failed have none."""
        number = max(self.first_pairs, default=0)
        while units := self._undecided():
            number += 1
            self.say(f"pair {number}: {len(units)} of {len(self.units)} cells undecided")
            self._round(units, number, again=False, wanted=self._wanted())
        first = judge(self.samples, self.plan, self.budget)
        failed = {item for item, judged in first.items() if judged.outcome is Outcome.FAIL}
        return {**first, **self._confirmed({item: first[item] for item in failed})}

    def _confirmed(self, failed: Mapping[str, Judgement]) -> dict[str, Judgement]:
        """The FAILs after a fresh re-measurement with as many pairs as each of them took."""
        self.again = {item: self.again.get(item, []) for item in failed}
        number = max(self.fresh_pairs, default=0)
        while short := {item for item in self.again if len(self.again[item]) < len(self.samples[item])}:
            number += 1
            self.say(f"{len(failed)} FAIL to confirm, fresh pair {number}")
            units = [cell.unit for name, cell in self.cells.items() if any(_cell_of(item) == name for item in short)]
            self._round(units, number, again=True, wanted=short)
        return {item: self._last_word(item, judged) for item, judged in failed.items() if item in self.again}

    def _last_word(self, item: str, first: Judgement) -> Judgement:
        final = confirm(first, self.again[item], self.plan, self.budget)
        if final.outcome is Outcome.FAIL and self.excuse_same_code and self.nothing_differs(_cell_of(item)):
            return replace(final, outcome=Outcome.INCONCLUSIVE, sentence=f"{SAME_CODE}: {final.sentence}")
        return final

    def nothing_differs(self, cell: str) -> bool:
        """Whether both sides run the same code on the same software, by sources, versions and artefacts."""
        versions = [self.versions.get(key) for key in (BASELINE, CANDIDATE)]
        same = same_code(self.sides[BASELINE], self.sides[CANDIDATE]) and versions[0] == versions[1]
        return same and not self.cells[cell].changed

    def _undecided(self) -> list[Unit]:
        wanted = {_cell_of(item) for item in self._wanted()}
        measured = {_cell_of(item) for item in self.samples}
        return [
            cell.unit
            for name, cell in self.cells.items()
            if cell.failure is None and (name in wanted or name not in measured)
        ]

    def _wanted(self) -> set[str]:
        return set(still_open(self.samples, self.plan, self.budget))

    def _round(self, units: Iterable[Unit], number: int, *, again: bool, wanted: set[str]) -> None:
        """One fresh process pair for each group of cells that may share one."""
        for group in batches(units, self.profile.isolation):
            left = group
            while left:
                left = self._group(left, number, again, wanted)

    def _group(self, units: list[Unit], number: int, again: bool, wanted: set[str]) -> list[Unit]:
        """Run one process pair; returns the cells that it did not come to because a side failed one."""
        current = units[0]
        pair = self.open_pair(self.sides, self.profile, self.device, self.checkout, self.logs, number, again)
        try:
            with pair:
                self.versions = pair.versions
                for unit in units:
                    current = unit
                    self._cell(pair, unit, wanted)
        except SideFailed as failure:
            if failure.fate is Fate.UNSUPPORTED:  # the revision is too old for this cell as for every other
                for unit in units:
                    self._drop(unit, failure)
                return []
            self._drop(current, failure)
            return units[units.index(current) + 1 :]
        return []

    def _cell(self, pair: ProcessPair, unit: Unit, wanted: set[str]) -> None:
        opened, buckets = pair.open(unit)
        self.cells[unit.cell.id].opened = opened
        store = self.again if pair.again else self.samples
        for bucket in buckets:
            item = item_of(unit, bucket)
            if item in wanted or item not in self.samples:
                record = pair.measure(unit, bucket)
                self.keep(record)
                store.setdefault(item, []).append(record.log_ratio)
        pair.close_cell()

    def _drop(self, unit: Unit, failure: SideFailed) -> None:
        """A cell that a side failed has no verdict on its time, whatever it measured before."""
        self.say(f"{unit.cell.id}: {failure}")
        self.cells[unit.cell.id].failure = failure
        for store in (self.samples, self.again):
            for item in [item for item in store if _cell_of(item) == unit.cell.id]:
                del store[item]


def _cell_of(item: str) -> str:
    return item.rpartition("@")[0]
