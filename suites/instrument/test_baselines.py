"""One more copy in every arm follows every closed form, and 1 % a night is within every night's noise. An accepted
baseline does not move by itself: counts gate at zero change, each with the direction that is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.baselines import Baseline, accept, baseline_file, describe_changes, dump, entry_of, load_baseline
from harness.errors import INCOMPLETE, PASS, UsageError
from harness.exact_counts import Direction, changes, direction, exact_counts
from harness.records import PROTOCOL_VERSION, Fate, GateResult, LaneRecord, Latency, Phase, RunHeader, Status
from harness.standing import Standing, baseline_gates, find_baseline, hold_against
from harness.store import RunData, RunStore, load_run
from harness.verdicts import added_gates, conclude

SOFTWARE = {"torch": "2.13.0", "python": "3.11.7"}


def header(**more: Any) -> RunHeader:
    cells = more.pop("cells", ["a"])
    fields = {
        "run": "now",
        "profile": "fake",
        "profile_hash": "0",
        "command": [],
        "started": "",
        "cells": cells,
        "units": [f"{cell}#serving" for cell in cells],
        "declared": {},
        "device": "cpu",
        "fingerprint": {"software": SOFTWARE, "cpu": {"model": "x"}, "now": {"load_1min": "9"}},
        "engine_revision": {"commit": "abc", "dirty_digest": ""},
        "harness_revision": {},
        "series": "cpu-x",
        "inputs": "123",
        **more,
    }
    return msgspec.convert(fields, RunHeader)


def lane(
    cell: str = "a", *, copies: int = 2, ratio: float = 0.85, fate: Fate = Fate.MEASURED, **more: Any
) -> LaneRecord:
    fields: dict[str, Any] = {
        "cell": cell,
        "axes": {},
        "lane": "serving",
        "dtype": "bfloat16",
        "fate": fate,
        "phase": Phase.REPLAY,
        "gates": [GateResult(gate="G3", status=Status.PASS, message="", evidence={"hidden_ratio": ratio, "rows": 9})],
        "counters": {
            "driven_steps": 23,
            "per_bucket": {"4": {"segments": 3, "regions": 2, "copies": {"output": {"count": 1, "bytes": 512}}}},
            "audit": {"4": {"launches": 3, "copies": {"device aten::copy_": {"count": copies, "bytes": 512 * copies}}}},
            "pool_bytes": 4096,
        },
        "capture": {
            "nodes": {"4": 18},
            "capture_s": 0.2,
            "compiles": {"num_inductor_compiles": 3, "num_cache_hits": 0, "num_piece_reuses": 0, "recompiles": 0},
        },
        "latency": [
            Latency(
                arm="R", phase="decode", batch=4, bucket=4, median_us=20, p25_us=19, p75_us=21, samples_us=[19, 20, 21]
            )
        ],
        "artefacts": {"graph": "f00"},
    }
    return msgspec.convert({**fields, **more}, LaneRecord)


def baseline(*lanes: LaneRecord, **more: Any) -> Baseline:
    cells = {one.cell: {one.lane: entry_of(one, header(run="then"))} for one in lanes or (lane(),)}
    fields = {
        "protocol": PROTOCOL_VERSION,
        "profile": "fake",
        "series": "cpu-x",
        "device": "cpu",
        "probes": "",
        "machine": {},
    }
    return Baseline(cells=cells, **{**fields, **more})


def gates_of(now: LaneRecord, then: Baseline | None = None, **more: Any) -> dict[str, GateResult]:
    return {gate.gate: gate for gate in baseline_gates(now, header(**more), then or baseline())}


def test_the_same_figures_pass_and_show_what_is_not_gated() -> None:
    gates = gates_of(lane())
    assert {name: gate.status for name, gate in gates.items()} == {
        "counter.compile": Status.PASS,
        "counter.counted": Status.PASS,
        "counter.pool": Status.PASS,
        "counter.recording": Status.PASS,
        "counter.step": Status.PASS,
        "G3.baseline": Status.PASS,
        "latency.drift.4": Status.REPORT,
        "latency.artefacts": Status.REPORT,
    }


def test_one_extra_copy_is_a_changed_cost_and_is_named_with_both_counts() -> None:
    gate = gates_of(lane(copies=3))["counter.counted"]
    assert gate.status is Status.FAIL
    assert "4.copies.device aten::copy_.count 2 -> 3" in gate.message
    assert added_gates(lane(copies=3), [gate]).fate is Fate.COST_CHANGED


def test_a_copy_of_a_kind_that_the_baseline_never_saw_counts_from_zero() -> None:
    audit = {"4": {"launches": 3, "copies": {"device aten::clone": {"count": 1, "bytes": 8}}}}
    gate = gates_of(lane(counters={**lane().counters, "audit": audit}))["counter.counted"]
    assert "device aten::clone.count 0 -> 1" in gate.message


def test_fewer_copies_must_be_accepted_and_are_no_regression() -> None:
    gates = gates_of(lane(copies=1))
    assert gates["unaccepted.counted"].status is Status.FAIL
    assert "counter.counted" not in gates
    assert added_gates(lane(copies=1), list(gates.values())).fate is Fate.FASTER


def test_counts_that_moved_both_ways_are_a_changed_cost() -> None:
    now = lane(copies=1, counters={**lane(copies=1).counters, "audit": {"4": {"launches": 4, "copies": {}}}})
    gate = gates_of(now)["counter.counted"]
    assert gate.message.index("launches 3 -> 4") < gate.message.index("aten::copy_")


def test_a_group_that_is_no_longer_counted_is_no_pass() -> None:
    counters = {name: value for name, value in lane().counters.items() if name != "audit"}
    assert gates_of(lane(counters=counters))["counter.counted"].status is Status.FAIL


def test_a_group_that_nobody_counted_then_is_not_gated() -> None:
    counters = {name: value for name, value in lane().counters.items() if name != "audit"}
    assert not any("counted" in name for name in gates_of(lane(), baseline(lane(counters=counters))))


def test_a_warm_cache_changes_no_kept_count() -> None:
    warm = {"num_inductor_compiles": 0, "num_cache_hits": 3, "num_piece_reuses": 0, "recompiles": 0}
    assert gates_of(lane(capture={**lane().capture, "compiles": warm}))["counter.compile"].status is Status.PASS


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("step/4.copies.output.bytes", Direction.LOWER),
        ("compile/recompiles", Direction.LOWER),
        ("compile/num_graphs_seen", Direction.SAME),
        ("compile/num_cache_hits", None),
        ("nobody/knows", None),
    ],
)
def test_every_kept_count_has_a_direction(name: str, way: Direction | None) -> None:
    assert direction(name) is way


def test_a_count_without_a_better_direction_never_improves() -> None:
    found = changes({"compile/num_graphs_seen": 2}, {"compile/num_graphs_seen": 1})["compile"]
    assert [change.better for change in found] == [False]


def test_every_kept_count_of_a_lane_is_a_whole_number() -> None:
    counts = exact_counts(lane())
    assert counts["counted/4.copies.device aten::copy_.count"] == 2
    assert counts["compile/generated_pieces"] == 3
    assert all(type(count) is int for count in counts.values())
    assert not any("capture_s" in name for name in counts)


@pytest.mark.parametrize(
    ("ratio", "gate", "fate"),
    [
        (0.89, "G3.baseline", Fate.MEASURED),
        (0.91, "G3.baseline", Fate.WRONG),
        (0.79, "unaccepted.G3", Fate.FASTER),
    ],
)
def test_the_compilers_error_ratio_may_move_by_five_hundredths(ratio: float, gate: str, fate: Fate) -> None:
    gates = gates_of(lane(ratio=ratio))
    assert gate in gates
    assert added_gates(lane(ratio=ratio), list(gates.values())).fate is fate


@pytest.mark.parametrize("change", [{"inputs": "other"}, {"fingerprint": {"software": {"torch": "2.14.0"}}}])
def test_another_torch_or_other_inputs_have_no_same_ratio_and_the_counts_still_gate(change: Mapping[str, Any]) -> None:
    gates = gates_of(lane(ratio=2.0, copies=3), **change)
    assert gates["G3.baseline"].status is Status.NOT_APPLICABLE
    assert gates["counter.counted"].status is Status.FAIL


def test_a_ratio_that_was_not_measured_any_more_is_no_pass() -> None:
    assert (
        gates_of(lane(gates=[GateResult(gate="G1", status=Status.PASS, message="")]))["G3.baseline"].status
        is Status.FAIL
    )


def test_a_new_cell_is_said_and_a_vanished_one_leaves_the_run_incomplete() -> None:
    standing = hold_against(baseline(lane("a"), lane("z")), header(cells=["a", "b"]), Standing())
    assert "1 of 2 cells have no baseline yet, the first is b" in standing.notes[0]
    assert "1 cells of the baseline were not declared by this run, the first is z" in standing.problems[0]
    narrowed = hold_against(baseline(lane("a"), lane("z")), header(filters={"level": ["3"]}), Standing())
    assert narrowed.problems == ()


def test_a_verdict_names_its_baseline_and_what_it_gates() -> None:
    standing = hold_against(baseline(), header(), Standing())
    verdict = conclude(RunData(header(), [lane()]), executed=1, finished="", seconds=1.0, standing=standing)
    assert verdict.exit_code == PASS
    assert "accepted from then; gated: exact counts at zero change" in verdict.baseline
    assert not any(reason.startswith("No baseline") for reason in verdict.reasons)


def test_a_required_baseline_satisfies_the_profile_only_if_every_cell_has_an_entry() -> None:
    head = header(cells=["a", "b"], profile_text={"baseline_required": True})
    standing = hold_against(baseline(), head, Standing())
    verdict = conclude(RunData(head, [lane("a"), lane("b")]), executed=2, finished="", seconds=1.0, standing=standing)
    assert verdict.exit_code == INCOMPLETE


def stored(tmp_path: Path, *lanes: LaneRecord, **more: Any) -> Path:
    head = header(cells=[one.cell for one in lanes], **more)
    with RunStore.create(tmp_path / "runs", head) as store:
        for one in lanes:
            store.append(one)
    return tmp_path / "runs" / head.run


def test_accepting_a_run_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    file = baseline_file(tmp_path, "cpu-x", "fake")
    texts = [dump(accept(stored(tmp_path / str(i), lane("b"), lane("a")), file)[0]) for i in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].index('"a"') < texts[0].index('"b"')
    assert "load_1min" not in texts[0]


def test_accepting_one_cell_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    file = baseline_file(tmp_path, "cpu-x", "fake")
    first, _ = accept(stored(tmp_path / "1", lane("a"), lane("b")), file)
    file.parent.mkdir(parents=True)
    file.write_text(dump(first))
    second, _ = accept(stored(tmp_path / "2", lane("a", copies=3), lane("b", copies=3), run="later"), file, ["a"])
    assert second.cells["b"] == first.cells["b"]
    assert describe_changes(first, second) == [
        "a (serving): counted/4.copies.device aten::copy_.bytes: 1024 -> 1536",
        "a (serving): counted/4.copies.device aten::copy_.count: 2 -> 3",
    ]


def test_a_cell_that_changed_against_the_baseline_can_be_accepted_and_a_wrong_one_cannot(tmp_path: Path) -> None:
    changed = lane("a", copies=3)
    folder = stored(tmp_path, changed, lane("b", fate=Fate.WRONG, reason="G1: differs"))
    store, _ = RunStore.reopen(folder)
    with store:
        store.append(added_gates(changed, baseline_gates(changed, header(), baseline())))
    assert load_run(folder).lanes[0].fate is Fate.COST_CHANGED
    taken, left_out = accept(folder, tmp_path / "none.json")
    assert list(taken.cells) == ["a"]
    assert left_out == ["left out: b is wrong: G1: differs"]
    with pytest.raises(UsageError, match="b is wrong"):
        accept(folder, tmp_path / "none.json", ["b"])


def test_gates_that_were_added_twice_count_once(tmp_path: Path) -> None:
    folder = stored(tmp_path, lane())
    store, _ = RunStore.reopen(folder)
    with store:
        for copies in (3, 2):
            store.append(added_gates(lane(), baseline_gates(lane(copies=copies), header(), baseline())))
    read = load_run(folder).lanes[0]
    assert (read.fate, len(read.gates)) == (Fate.MEASURED, 1 + 8)
    assert len(load_run(folder, added=False).lanes[0].gates) == 1


def test_a_baseline_that_cannot_be_used_ends_the_command(tmp_path: Path) -> None:
    file = baseline_file(tmp_path, "cpu-x", "fake")
    assert find_baseline(header(), tmp_path)[0] is None
    file.parent.mkdir(parents=True)
    for text, rule in (("{", "cannot be read"), (dump(baseline(protocol="0")), "protocol 0")):
        file.write_text(text)
        with pytest.raises(UsageError, match=rule):
            load_baseline(file)
    file.write_text(dump(baseline(probes="other:probes")))
    with pytest.raises(UsageError, match="other probes"):
        find_baseline(header(), tmp_path)


def test_the_baseline_of_another_machine_is_named_and_not_used(tmp_path: Path) -> None:
    file = baseline_file(tmp_path, "gpu-y", "fake")
    file.parent.mkdir(parents=True)
    file.write_text(dump(baseline()))
    found, reason = find_baseline(header(), tmp_path)
    assert found is None
    assert "Other machines have one: gpu-y" in reason
