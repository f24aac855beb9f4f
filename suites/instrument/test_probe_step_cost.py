"""A sleep before every replay left all counts right; and a gate on time that fires on a busy machine is switched off.

So the gate must see a wait or a slower step, and must stay silent where only the machine is slow.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import cycle, islice

import pytest

from harness.engines.base import Arm, PadFill, StepBatch, StepResult
from harness.probes.hot_line import stands_out
from harness.probes.latency import LatencyProbe
from harness.probes.step_cost import ALPHA, FIRST_PAIRS, PAIRS, Case, Pair, Sample, chance, gates
from harness.records import GateResult, Status
from suites.instrument.probe_bench import context_of, failed, gate
from suites.instrument.toy_session import ToySession, one_thread


class Sleeping(ToySession):
    """Arm R sleeps for a millisecond."""

    def step(self, batch: StepBatch, arm: Arm, *, rows: int | None = None, pad: PadFill = PadFill.ENGINE) -> StepResult:
        if arm is Arm.R:
            time.sleep(0.001)
        return super().step(batch, arm, rows=rows, pad=pad)


class Spinning(ToySession):
    """Arm R computes something for nobody, four times as long as its step."""

    def step(self, batch: StepBatch, arm: Arm, *, rows: int | None = None, pad: PadFill = PadFill.ENGINE) -> StepResult:
        begun = time.perf_counter()
        result = super().step(batch, arm, rows=rows, pad=pad)
        end = begun + 5 * (time.perf_counter() - begun)
        while arm is Arm.R and time.perf_counter() < end:
            pass
        return result


def judge(case: Case) -> dict[str, GateResult]:
    return {found.gate: found for found in gates([case], "cpu")}


def case(pairs: list[Pair]) -> Case:
    """The same behaviour in the first look and in the fresh pairs."""
    fresh = cycle(pairs)
    return Case(4, pairs[:5], lambda count: list(islice(fresh, count)), lambda: "runner.py:7 in step")


def pairs_of(plain: list[float], served: list[float], plain_waits: int = 0, served_waits: int = 0) -> list[Pair]:
    return [Pair(Sample(a, plain_waits), Sample(b, served_waits)) for a, b in zip(plain, served, strict=True)]


@pytest.mark.parametrize(
    ("session", "name", "said"),
    [(Sleeping, "latency.waits", "waits 1 times"), (Spinning, "latency.graph", "times arm C's")],
)
def test_a_step_that_waits_or_works_for_nobody_is_named_with_its_line(
    session: type[ToySession], name: str, said: str
) -> None:
    with one_thread():
        result = LatencyProbe().run(context_of(session))
    assert name in failed(result)
    assert said in gate(result, name).message
    assert "test_probe_step_cost.py" in gate(result, name).message


def test_a_clean_session_waits_nowhere() -> None:
    with one_thread():
        result = LatencyProbe().run(context_of())
    assert gate(result, "latency.waits").status is Status.PASS


def test_noise_that_hits_both_arms_fires_in_less_than_one_run_in_a_thousand() -> None:
    drawn = random.Random(3)

    def noisy() -> list[float]:
        return [100 * drawn.lognormvariate(0, 0.5) for _ in range(PAIRS)]

    alarms = sum(judge(case(pairs_of(noisy(), noisy())))["latency.graph"].status is Status.FAIL for _ in range(1000))
    assert alarms == 0


def test_a_step_twice_as_long_is_found_within_noise_of_a_fifth() -> None:
    drawn = random.Random(4)

    def noisy(median_us: float) -> list[float]:
        return [median_us * drawn.lognormvariate(0, 0.2) for _ in range(PAIRS)]

    found = sum(
        judge(case(pairs_of(noisy(100), noisy(200))))["latency.graph"].status is Status.FAIL for _ in range(100)
    )
    assert found >= 99


def test_one_slow_minute_in_the_first_look_is_forgiven_by_fresh_pairs() -> None:
    slow, fine = pairs_of([100.0] * 5, [900.0] * 5), pairs_of([100.0] * PAIRS, [101.0] * PAIRS)
    looked: list[int] = []

    def again(count: int) -> list[Pair]:
        looked.append(count)
        return fine

    found = judge(Case(4, slow, again, str))
    assert found["latency.graph"].status is Status.PASS
    assert looked == [FIRST_PAIRS]


def test_waiting_proves_nothing_where_the_plain_step_waits_too() -> None:
    found = judge(case(pairs_of([100.0] * PAIRS, [100.0] * PAIRS, plain_waits=3, served_waits=9)))
    assert found["latency.waits"].status is Status.NOT_APPLICABLE


def test_no_timed_step_is_no_pass() -> None:
    assert {found.status for found in gates([], "cpu")} == {Status.FAIL}


def test_the_fewest_fresh_pairs_can_still_confirm() -> None:
    from harness.probes.latency import FEWEST_PAIRS

    assert chance(FEWEST_PAIRS, FEWEST_PAIRS) <= ALPHA
    assert chance(0, 0) == 1.0
    assert chance(1, 2) == pytest.approx(0.75)


def test_two_steps_alike_have_no_hotter_line() -> None:
    alike = Counter({"model.py:7 in forward": 900, "runner.py:3 in step": 100})
    assert stands_out(alike, alike) == ""
    assert stands_out(alike, Counter({"model.py:7 in forward": 100, "runner.py:3 in step": 20})) == ""
    assert stands_out(alike + Counter({"asleep.py:1 in wait": 400}), alike) == "asleep.py:1 in wait"
    assert stands_out(Counter(), alike) == ""
