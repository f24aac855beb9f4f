"""A table of full buckets shows no batch that falls between them: one ran eagerly at a third of the speed for a month.
Every bucket is entered at its edges, and a step that its bucket does not explain is red.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import pytest

from harness.engines.base import Arm, PadFill, StepBatch, StepResult
from harness.probes.base import ProbeResult
from harness.probes.latency import LatencyProbe
from harness.probes.staircase import StaircaseProbe, edge_batches
from harness.profile import Budget
from harness.records import Status
from suites.instrument.probe_bench import context_of, gate
from suites.instrument.toy_session import ToySession


class Paced(ToySession):
    """Its clock is its own: a step takes `cost_us` of its rows, and nothing else takes any time."""

    now_ns = 0
    slow: ClassVar[dict[int, float]] = {}  # rows -> times as long

    def step(self, batch: StepBatch, arm: Arm, *, rows: int | None = None, pad: PadFill = PadFill.ENGINE) -> StepResult:
        result = super().step(batch, arm, rows=rows, pad=pad)
        bucket = next((size for size in (1, 2, 4) if size >= batch.rows), batch.rows)
        self.now_ns += int(1000 * (400 + 100 * bucket) * self.slow.get(batch.rows, 1.0))
        return result


def climbed(slow: dict[int, float] | None = None, **changes: Any) -> ProbeResult:
    context = context_of(type("Slow", (Paced,), {"slow": slow or {}}), input_sets=2, **changes)
    session = context.session
    assert isinstance(session, Paced)
    return StaircaseProbe(LatencyProbe(clock=lambda: session.now_ns)).run(context)


def test_every_bucket_is_entered_at_its_edges_and_past_the_last() -> None:
    assert [batch.rows for batch in edge_batches(context_of(input_sets=2))] == [1, 2, 3, 4, 5]
    rows = climbed().counters["staircase"]
    assert [(row["batch"], row["bucket"]) for row in rows] == [(1, 1), (2, 2), (3, 4), (4, 4), (5, None)]
    assert rows[2]["pad_share"] == 0.25
    assert {row["samples"] for row in rows} == {5}


def test_a_sound_staircase_passes() -> None:
    result = climbed()
    assert {found.status for found in result.gates} == {Status.PASS, Status.REPORT}
    assert gate(result, "closed.padding").measured == 0.25
    assert "5 rows run eagerly" in gate(result, "latency.staircase.past").message


def test_a_padded_batch_that_takes_longer_than_its_full_bucket_is_named() -> None:
    found = gate(climbed({3: 1.5}), "latency.staircase.flat")
    assert found.status is Status.FAIL
    assert found.where == "arm R, 3 rows, bucket 4"
    assert gate(climbed({3: 1.1}), "latency.staircase.flat").status is Status.PASS


def test_time_that_grows_faster_than_the_rows_computed_is_a_cliff() -> None:
    result = climbed({3: 3.0, 4: 3.0})
    assert gate(result, "latency.staircase.flat").status is Status.PASS
    found = gate(result, "latency.staircase.cliffs")
    assert found.status is Status.FAIL
    assert found.where == "arm R, between 2 and 3 rows"


@pytest.mark.parametrize(("ladder", "status"), [([1, 4], Status.PASS), ([4], Status.FAIL)])
def test_a_ladder_with_more_padding_than_the_profile_allows_is_red_by_arithmetic_alone(
    ladder: list[int], status: Status
) -> None:
    context = context_of(Paced, input_sets=2, ladder=ladder)
    profile = msgspec.structs.replace(context.profile, budget=Budget(pad_share=0.5))
    session = context.session
    assert isinstance(session, Paced)
    probe = StaircaseProbe(LatencyProbe(clock=lambda: session.now_ns))
    found = gate(probe.run(replace(context, profile=profile)), "closed.padding")
    assert (found.status, found.measured) == (status, {1: 0.75, 2: 0.5}[len(ladder)])
    assert "bucket 4 is entered with" in found.message


def test_a_profile_that_states_no_limit_only_says_how_much_is_padding() -> None:
    assert gate(climbed(ladder=[4]), "closed.padding").status is Status.PASS


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"mode": "NONE"}, "there are no buckets"), ({"workload": "prefill"}, "is climbed in decode cells")],
)
def test_where_there_is_no_staircase_it_is_said(changes: dict[str, Any], reason: str) -> None:
    (found,) = climbed(**changes).gates
    assert found.status is Status.NOT_APPLICABLE
    assert reason in found.message
