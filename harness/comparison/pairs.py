"""One fresh pair of processes: each cell opened on both sides, blocks in seeded ABBA order, paired log-ratios.

Processes of the same code were measured 13 % apart with 0.2 % of noise inside each. A ratio is only ever taken between
two processes that lived through the same minutes, and one pair of processes is one observation.
"""

from __future__ import annotations

import math
import os
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.comparison.messages import Block, CloseCell, Closed, OpenCell, Opened, Ready, Timed
from harness.comparison.peer import Peer, SideFailed
from harness.comparison.sides import Side
from harness.job import UnitSpec
from harness.plan import Unit
from harness.profile import Profile
from harness.records import Fate, PairRecord
from harness.stats import finite

BASELINE, CANDIDATE = "A", "B"


@dataclass(frozen=True)
class OpenedPair:
    """What both sides said of a cell when it was open."""

    unit: Unit
    phase: str
    artefacts: dict[str, dict[str, str]]


@dataclass
class ProcessPair:
    """Two live workers. Use it as a context: leaving it ends both."""

    sides: dict[str, Side]
    profile: Profile
    device: str
    checkout: Path
    logs: Path
    number: int
    again: bool = False
    peers: dict[str, Peer] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    opened: OpenedPair | None = None

    def __enter__(self) -> ProcessPair:
        self.logs.mkdir(parents=True, exist_ok=True)
        limit_s = self.profile.time_limits.build_s
        try:
            for key in self._order("start"):
                log = self.logs / f"{'again' if self.again else 'pair'}-{self.number:02d}-{self.sides[key].name}.log"
                self.peers[key] = Peer(self.sides[key], self.profile, self.device, self.checkout, log)
            for key, peer in self.peers.items():
                ready = peer.wait(limit_s, "import the engine")
                assert isinstance(ready, Ready)
                self.versions[key] = ready.versions
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for peer in self.peers.values():
            peer.close()

    def open(self, unit: Unit) -> tuple[OpenedPair, list[int]]:
        """Open one cell on both sides, one after the other: two compilations at once share a cache badly."""
        limits = self.profile.time_limits
        limit_s = limits.build_s + limits.compile_s + limits.capture_s
        opened: dict[str, Opened] = {}
        for key in self._order(unit.id):
            self.peers[key].send(OpenCell(UnitSpec.of(unit)))
            reply = self.peers[key].wait(limit_s, f"open {unit.cell.id}")
            assert isinstance(reply, Opened)
            if reply.refused:
                raise SideFailed(self.sides[key], Fate.UNFIT, reply.refused)
            opened[key] = reply
        both = [bucket for bucket in opened[BASELINE].buckets if bucket in opened[CANDIDATE].buckets]
        if not both:
            sizes = [opened[key].buckets for key in (BASELINE, CANDIDATE)]
            reason = f"it times buckets {sizes[1]} and the baseline {sizes[0]}: there is none to compare"
            raise SideFailed(self.sides[CANDIDATE], Fate.CRASHED, reason)
        artefacts = {
            key: {name: str(value) for name, value in reply.artefacts.items()} for key, reply in opened.items()
        }
        self.opened = OpenedPair(unit, opened[BASELINE].phase, artefacts)
        return self.opened, both

    def measure(self, unit: Unit, bucket: int) -> PairRecord:
        """All blocks of one bucket of the opened cell. For each quad that was spoilt another one is timed, once."""
        plan, item = self.profile.comparison, item_of(unit, bucket)
        wanted = abba(2 * plan.quads, f"{self.profile.numerics.seed} {item} {self.number} {self.again}")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        order: list[str] = []
        replies: list[Timed] = []
        while len(order) < len(wanted) and len(order) // 4 - len(spoilt(order, _samples(replies))) < plan.quads:
            quad = wanted[len(order) : len(order) + 4]
            replies += [self._block(key, bucket, plan.block_steps) for key in quad]
            order += quad
        blocks = _samples(replies)
        assert self.opened is not None
        return PairRecord(
            cell=unit.cell.id,
            item=item,
            number=self.number,
            again=self.again,
            order=order,
            blocks_us=blocks,
            log_ratio=log_ratio(order, blocks),
            started=started,
            load_1min=round(os.getloadavg()[0], 2),
            timed_again=_again(replies, len(order) // 4 - plan.quads),
            disturbed=dict(Counter(why for reply in replies for why in reply.kept)),
            phase=self.opened.phase,
            artefacts=self.opened.artefacts,
            versions=self.versions,
        )

    def close_cell(self) -> None:
        for peer in self.peers.values():
            peer.send(CloseCell())
            assert isinstance(peer.wait(self.profile.time_limits.teardown_s, "close the cell"), Closed)

    def _block(self, key: str, bucket: int, steps: int) -> Timed:
        self.peers[key].send(Block(bucket, steps))
        reply = self.peers[key].wait(self.profile.time_limits.timing_s, f"time {steps} steps at bucket {bucket}")
        assert isinstance(reply, Timed)
        return reply

    def _order(self, what: str) -> list[str]:
        keys = [BASELINE, CANDIDATE]
        random.Random(f"{self.profile.numerics.seed} {what} {self.number} {self.again}").shuffle(keys)
        return keys


def item_of(unit: Unit, bucket: int) -> str:
    return f"{unit.cell.id}@{bucket}"


def abba(quads: int, seed: str) -> list[str]:
    """`quads` times ABBA or BAAB, chosen by `seed`: drift that is a line over a quad cancels in it."""
    chooser = random.Random(seed)
    return [key for _ in range(quads) for key in chooser.choice(("ABBA", "BAAB"))]


#: A block this much slower than the faster quarter of its side's was not alone on the machine.
SPOILT = 1.3
SPOILT_QUAD = "a quad with a block that took a third longer than others of its side"


def spoilt(order: Sequence[str], blocks_us: Sequence[Sequence[float]]) -> list[int]:
    """The quads with a block during which something else had the core, told by the other blocks of the same process.

    A change of the code is in all blocks of a side, and spoils none.
    """
    medians = [statistics.median(finite(block, "block sample").tolist()) for block in blocks_us]
    usual = {side: _lower_quarter([m for key, m in zip(order, medians, strict=True) if key == side]) for side in order}
    slow = [median > SPOILT * usual[key] for key, median in zip(order, medians, strict=True)]
    return [start // 4 for start in range(0, len(slow), 4) if any(slow[start : start + 4])]


def log_ratio(order: Sequence[str], blocks_us: Sequence[Sequence[float]]) -> float:
    """Candidate over baseline: the median over quads of the difference between the mean logs of block medians.

    Each quad is free of drift. Spoilt ones are left out unless they are the greater part, and the median bears what
    little else ran; a mean did not.

    Raises ValueError for a block without samples, or with one that is not a positive number.
    """
    ratios = []
    for quad in _quads(order, blocks_us):
        logs: dict[str, list[float]] = {BASELINE: [], CANDIDATE: []}
        for key, block in quad:
            median = statistics.median(finite(block, "block sample").tolist())
            if median <= 0:
                raise ValueError(f"a block's median is {median} us: a step takes some time, so the clock is wrong")
            logs[key].append(math.log(median))
        ratios.append(statistics.fmean(logs[CANDIDATE]) - statistics.fmean(logs[BASELINE]))
    left_out = set(spoilt(order, blocks_us))
    sound = [ratio for index, ratio in enumerate(ratios) if index not in left_out]
    return statistics.median(sound if 2 * len(sound) >= len(ratios) else ratios)


def _lower_quarter(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]


def _samples(replies: Sequence[Timed]) -> list[list[float]]:
    return [reply.samples_us for reply in replies]


def _again(replies: Sequence[Timed], more_quads: int) -> dict[str, int]:
    """What was timed again, by what disturbed it."""
    found = Counter(why for reply in replies for why in reply.again)
    return {**found, **({SPOILT_QUAD: more_quads} if more_quads else {})}


def _quads(order: Sequence[str], blocks_us: Sequence[Sequence[float]]) -> Iterator[list[tuple[str, Sequence[float]]]]:
    paired = list(zip(order, blocks_us, strict=True))
    if not paired or len(paired) % 4:
        raise ValueError(f"{len(paired)} blocks are no whole number of quads")
    for start in range(0, len(paired), 4):
        yield paired[start : start + 4]
