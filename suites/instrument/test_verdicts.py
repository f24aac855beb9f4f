"""Missing data read as success is the commonest fault of harnesses: an empty result file, a NaN column and a vanished
cell each passed somewhere. Here each of them has a test that it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from harness import errors
from harness.records import Fate, GateResult, LaneRecord, Latency, Phase, RunHeader, Status, Verdict
from harness.soundness import plain, sound_gate, sound_latencies
from harness.store import RunData
from harness.verdicts import PRECEDENCE, conclude, first_fate, lane_fate

CELLS = ("a", "b", "c")


def gate(name: str = "G1", status: Status = Status.PASS, measured: float | None = 0.0) -> GateResult:
    return GateResult(gate=name, status=status, message=f"{name} says so", measured=measured)


def lane(
    cell: str, fate: Fate = Fate.MEASURED, gates: Sequence[GateResult] | None = None, name: str = "serving"
) -> LaneRecord:
    return LaneRecord(
        cell=cell,
        axes={},
        lane=name,
        dtype="bfloat16",
        fate=fate,
        phase=Phase.REPLAY,
        gates=[gate()] if gates is None else list(gates),
        reason="" if fate is Fate.MEASURED else f"it is {fate.value}",
    )


def header(
    cells: Sequence[str] = CELLS,
    lanes: Sequence[str] = ("serving",),
    declared: Mapping[str, str] | None = None,
    holes: Mapping[str, str] | None = None,
    **more: object,
) -> RunHeader:
    declared = dict(declared or {})
    fields = {
        "run": "r",
        "profile": "fake",
        "profile_hash": "0",
        "command": [],
        "started": "",
        "cells": list(cells),
        "units": [f"{cell}#{name}" for cell in cells if cell not in declared for name in lanes],
        "declared": declared,
        "device": "cpu",
        "fingerprint": {},
        "engine_revision": {},
        "harness_revision": {},
        "holes": dict(holes or {}),
        **more,
    }
    return msgspec.convert(fields, RunHeader)


def judge(lanes: Sequence[LaneRecord], head: RunHeader | None = None, executed: int | None = None) -> Verdict:
    run = RunData(head or header(), list(lanes))
    return conclude(run, executed=len(lanes) if executed is None else executed, finished="", seconds=1.0)


def fates(verdict: Verdict) -> dict[str, Fate]:
    return {cell.cell: cell.fate for cell in verdict.cells}


def test_all_lanes_measured_is_a_pass_that_says_what_was_not_gated() -> None:
    verdict = judge([lane(cell) for cell in CELLS])
    assert (verdict.exit_code, verdict.title) == (errors.PASS, "PASS: 3 of 3 cells")
    assert verdict.baseline == ""
    assert any(reason.startswith("No baseline: step times") for reason in verdict.reasons)
    assert verdict.expected == verdict.executed == verdict.stored == verdict.reported == 3


@pytest.mark.parametrize(
    ("fate", "code", "title"),
    [
        (Fate.WRONG, errors.FAILED, "FAIL: 1 of 3 cells"),
        (Fate.CRASHED, errors.FAILED, "FAIL: 1 of 3 cells"),
        (Fate.HUNG, errors.FAILED, "FAIL: 1 of 3 cells"),
        (Fate.TEARDOWN_CRASHED, errors.FAILED, "FAIL: 1 of 3 cells"),
        (Fate.DOWNGRADED, errors.FAILED, "FAIL: 1 of 3 cells"),
        (Fate.SLOWER, errors.FAILED, "FAIL: 1 of 3 cells"),
        (Fate.COST_CHANGED, errors.FAILED, "FAIL: 1 of 3 cells"),
        (Fate.INCONCLUSIVE, errors.INCOMPLETE, "INCOMPLETE: 1 of 3 cells undecided"),
        (Fate.FASTER, errors.INCOMPLETE, "INCOMPLETE: 1 of 3 cells undecided"),
        (Fate.UNFIT, errors.UNFIT, "UNFIT: 1 of 3 cells"),
        (Fate.WAIVED, errors.PASS, "PASS: 3 of 3 cells, 1 waived"),
    ],
)
def test_one_cell_of_a_fate_decides_the_exit_code(fate: Fate, code: int, title: str) -> None:
    verdict = judge([lane("a", fate), lane("b"), lane("c")])
    assert (verdict.exit_code, verdict.title) == (code, title)
    assert fates(verdict) == {"a": fate, "b": Fate.MEASURED, "c": Fate.MEASURED}
    assert any(f"a is {fate.value}: it is {fate.value}" in reason for reason in verdict.reasons) == bool(code)


def test_a_cell_without_a_record_is_not_run_and_never_a_pass() -> None:
    verdict = judge([lane("a"), lane("b")])
    assert fates(verdict)["c"] is Fate.NOT_RUN
    assert verdict.exit_code == errors.INCOMPLETE
    assert "c is not-run: no record of lane serving" in verdict.reasons


def test_a_cell_with_one_of_its_two_lanes_is_not_run() -> None:
    lanes = [lane(cell, name=name) for cell in CELLS for name in ("serving", "float32")]
    verdict = judge(lanes[:-1], header(lanes=("serving", "float32")))
    assert fates(verdict)["c"] is Fate.NOT_RUN
    assert "c is not-run: no record of lane float32" in verdict.reasons


def test_an_empty_run_is_not_a_pass() -> None:
    verdict = judge([])
    assert verdict.exit_code == errors.INCOMPLETE
    assert set(fates(verdict).values()) == {Fate.NOT_RUN}


def test_a_wrong_lane_holds_whatever_the_other_lane_says() -> None:
    lanes = [lane("a", Fate.CRASHED, name="serving"), lane("a", Fate.WRONG, name="float32")]
    verdict = judge(lanes, header(cells=("a",), lanes=("serving", "float32")))
    assert fates(verdict) == {"a": Fate.WRONG}
    assert "it is wrong (lane float32, bfloat16)" in verdict.cells[0].reason


def test_the_precedence_of_fates_is_the_order_in_which_they_are_declared() -> None:
    assert first_fate(reversed(PRECEDENCE)) is Fate.WRONG
    assert first_fate([Fate.WAIVED, Fate.NOT_RUN]) is first_fate([Fate.MEASURED, Fate.NOT_RUN]) is Fate.NOT_RUN
    assert PRECEDENCE.index(Fate.HUNG) < PRECEDENCE.index(Fate.TEARDOWN_CRASHED) < PRECEDENCE.index(Fate.MEASURED)
    assert PRECEDENCE[-1] is Fate.NOT_RUN


def test_a_declared_cell_is_unsupported_with_its_reason_and_green() -> None:
    head = header(declared={"c": "prefill is eager under FULL"})
    verdict = judge([lane("a"), lane("b")], head)
    assert fates(verdict)["c"] is Fate.UNSUPPORTED
    assert verdict.cells[2].reason == "prefill is eager under FULL"
    assert (verdict.exit_code, verdict.title) == (errors.PASS, "PASS: 2 of 2 cells")


def test_a_hole_in_the_ladder_fails_a_cell_whose_lanes_all_passed() -> None:
    verdict = judge([lane(cell) for cell in CELLS], header(holes={"b": "requests 5: no bucket"}))
    assert fates(verdict)["b"] is Fate.DOWNGRADED
    assert verdict.exit_code == errors.FAILED
    assert "b is downgraded: a hole in the ladder: requests 5: no bucket" in verdict.reasons


def test_a_measured_lane_without_a_decided_gate_is_a_fault_of_the_harness() -> None:
    for gates in ([], [gate(status=Status.REPORT)], [gate(status=Status.NOT_APPLICABLE)]):
        verdict = judge([lane("a", gates=gates), lane("b"), lane("c")])
        assert verdict.exit_code == errors.FAULT
        assert fates(verdict)["a"] is Fate.NOT_RUN
        assert "a (serving) ended without one decided gate" in verdict.reasons[0]


def test_a_record_that_claims_measured_over_a_failed_gate_is_not_believed() -> None:
    verdict = judge([lane("a", gates=[gate("G3", Status.FAIL)]), lane("b"), lane("c")])
    assert fates(verdict)["a"] is Fate.WRONG
    assert verdict.exit_code == errors.FAILED
    assert verdict.cells[0].failed == ["G3 (serving)"]


def test_a_fault_of_the_harness_comes_before_a_failed_cell_and_that_before_an_open_one() -> None:
    both = judge([lane("a", gates=[]), lane("b", Fate.WRONG), lane("c")])
    assert both.exit_code == errors.FAULT
    assert judge([lane("a", Fate.INCONCLUSIVE), lane("b", Fate.WRONG), lane("c")]).exit_code == errors.FAILED
    assert errors.first_exit_code([3, 1, 5, 4, 2]) == errors.USAGE
    assert errors.first_exit_code([3, 1, 5, 4]) == errors.UNFIT
    assert errors.first_exit_code([]) == errors.PASS


def test_counts_that_disagree_are_incomplete_even_if_every_cell_passed() -> None:
    verdict = judge([lane(cell) for cell in CELLS], executed=2)
    assert verdict.exit_code == errors.INCOMPLETE
    assert "expected 3, executed 2, stored 3, reported 3" in "".join(verdict.reasons)
    assert verdict.title == "INCOMPLETE: the counts disagree"


def test_a_unit_that_was_recorded_twice_is_not_overlooked() -> None:
    verdict = judge([lane("a"), lane("a"), lane("b"), lane("c")], executed=3)
    assert verdict.exit_code == errors.INCOMPLETE
    assert (verdict.stored, verdict.reported) == (4, 3)


def test_a_record_that_nobody_declared_is_not_overlooked() -> None:
    verdict = judge([lane(cell) for cell in (*CELLS, "d")])
    assert verdict.exit_code == errors.INCOMPLETE
    assert "1 recorded units were never declared, the first is d#serving." in verdict.reasons


def test_a_profile_that_requires_a_baseline_is_incomplete_without_one() -> None:
    verdict = judge([lane(cell) for cell in CELLS], header(profile_text={"baseline_required": True}))
    assert verdict.exit_code == errors.INCOMPLETE
    assert "Profile fake requires a baseline, and there is none." in verdict.reasons


def test_a_narrowed_or_replaced_run_says_so_in_its_title() -> None:
    verdict = judge([lane(cell) for cell in CELLS], header(filters={"level": ["3"]}, probes="mine:measure"))
    assert verdict.title == "PASS: 3 of 3 cells (narrowed from profile fake, other probes)"
    assert "Not the whole profile: the command line set level 3." in verdict.reasons
    assert "Not a sign-off: the probes were replaced by mine:measure." in verdict.reasons


@pytest.mark.parametrize(
    ("gates", "fate"),
    [
        ([gate("G1", Status.FAIL)], Fate.WRONG),
        ([gate("audit.copies", Status.FAIL)], Fate.WRONG),
        ([gate("a.gate.of.next.year", Status.FAIL)], Fate.WRONG),
        ([gate("dispatch.mode", Status.FAIL)], Fate.DOWNGRADED),
        ([gate("closed.copies", Status.FAIL)], Fate.COST_CHANGED),
        ([gate("counter.segments", Status.FAIL)], Fate.COST_CHANGED),
        ([gate(), gate("G5", Status.INCONCLUSIVE)], Fate.INCONCLUSIVE),
        ([gate("closed.copies", Status.FAIL), gate("dispatch.plan", Status.FAIL)], Fate.DOWNGRADED),
        ([gate("dispatch.plan", Status.FAIL), gate("G2", Status.FAIL)], Fate.WRONG),
        ([gate(), gate("G7", Status.REPORT)], Fate.MEASURED),
        ([], Fate.NOT_RUN),
    ],
)
def test_the_family_of_a_failed_gate_decides_the_fate_of_its_lane(gates: list[GateResult], fate: Fate) -> None:
    found, reason = lane_fate(gates)
    assert found is fate
    assert bool(reason) == (fate is not Fate.MEASURED)


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), float("-inf")])
def test_a_pass_that_measured_no_number_becomes_a_failure_and_keeps_the_word(figure: float) -> None:
    judged = sound_gate(gate("G5", measured=figure))
    assert judged.status is Status.FAIL
    assert judged.measured is None
    assert judged.evidence["measured"] == str(figure)
    assert msgspec.json.decode(msgspec.json.encode(judged), type=GateResult) == judged


def test_a_gate_that_measured_a_number_or_nothing_is_left_as_it_is() -> None:
    assert sound_gate(gate(measured=0.5)) == gate(measured=0.5)
    assert sound_gate(gate(measured=None)) == gate(measured=None)


def test_a_latency_without_sound_samples_is_left_out_and_failed() -> None:
    good = Latency(arm="R", phase="decode", batch=1, bucket=1, median_us=2, p25_us=1, p75_us=3, samples_us=[1, 2, 3])
    bad = [
        msgspec.structs.replace(good, samples_us=[]),
        msgspec.structs.replace(good, samples_us=[1.0, float("nan")]),
        msgspec.structs.replace(good, median_us=float("inf")),
        msgspec.structs.replace(good, samples_us=[0.0]),
    ]
    kept, faults = sound_latencies([good, *bad])
    assert kept == [good]
    assert [fault.status for fault in faults] == [Status.FAIL] * 4
    assert lane_fate([gate(), *faults])[0] is Fate.WRONG


def test_what_is_recorded_survives_json_without_loss() -> None:
    class Version(str):
        __slots__ = ()

    value = {2: (1, float("nan")), Phase.REPLAY: {"x": Version("2.13")}, "inf": float("inf"), ("a", 1): {3}, "on": True}
    carried = plain(value)
    assert carried == {"2": [1, "nan"], "replay": {"x": "2.13"}, "inf": "inf", "['a', 1]": [3], "on": True}
    assert msgspec.json.decode(msgspec.json.encode(carried)) == carried
