"""One copy too many, one segment too many, a recompile nobody counted: exact counts against what the cell implies."""

from __future__ import annotations

from typing import Any

import pytest

from harness.coverage import Route
from harness.engines.base import Arm, Phase, StepBatch
from harness.probes.closed_forms import ModelFacts, differences, distinct_pieces, piece_forms, step_form
from harness.records import Status
from suites.instrument.probe_bench import failed, gate, measured
from suites.instrument.toy_session import ToySession

FACTS = ModelFacts(30, 1, 576, 2)


def test_a_token_graph_breaks_once_a_layer_and_copies_one_output() -> None:
    form = step_form(FACTS, Route(3, "TR_HYBRID", 4), Phase.DECODE, requests=3, rows=3)
    assert (form.segments, form.regions) == (31, 30)
    assert form.copies == {"output": (1, 4 * 576 * 2)}


def test_a_whole_model_graph_is_one_segment_without_regions() -> None:
    form = step_form(FACTS, Route(4, "FULL", 4), Phase.DECODE, requests=4, rows=4)
    assert (form.segments, form.regions) == (1, 0)


def test_an_eager_step_replays_and_copies_nothing() -> None:
    form = step_form(FACTS, Route(5, "NONE", None), Phase.DECODE, requests=5, rows=5)
    assert (form.segments, form.copies) == (0, {})
    assert differences(form, {"segments": 0, "regions": 30, "copies": {}}) == {}
    assert set(differences(form, {"segments": 1, "copies": {"output": {"count": 1, "bytes": 8}}})) == {
        "segments",
        "copies.output",
    }


@pytest.mark.parametrize(("requests", "rows", "phase", "size"), [(3, 3, Phase.DECODE, 48), (2, 3, Phase.PREFILL, 36)])
def test_staging_grows_with_padded_rows_and_requests(requests: int, rows: int, phase: Phase, size: int) -> None:
    units = (("row", 4), ("request", 2), ("request+1", 4), ("step", 4))
    staging = tuple({"name": per, "per": per, "bytes": nbytes} for per, nbytes in units)
    facts = ModelFacts(1, 1, 1, 1, staging)
    form = step_form(facts, Route(3, "TR_HYBRID", 4), phase, requests=requests, rows=rows)
    assert form.copies["staging"] == (4, size)


def test_a_staging_unit_that_nobody_defined_is_refused() -> None:
    facts = {
        "layers": 1,
        "split_ops_per_layer": 1,
        "hidden_size": 1,
        "itemsize": 1,
        "staging": [{"name": "x", "per": "moon"}],
    }
    with pytest.raises(ValueError, match="'moon'; a unit is one of row, request"):
        ModelFacts.of(facts)


def test_model_facts_that_an_engine_does_not_state_are_asked_for_by_name() -> None:
    with pytest.raises(ValueError, match="does not state 'hidden_size'"):
        ModelFacts.of({"layers": 1, "split_ops_per_layer": 1})


def test_pieces_follow_from_layers_at_level_three() -> None:
    assert piece_forms(FACTS, 3) == {"num_piecewise_graphs_seen": 61, "num_piecewise_capturable_graphs_seen": 31}
    assert piece_forms(FACTS, 0)["num_inductor_compiles"] == 0
    assert [distinct_pieces(ModelFacts(n, 1, 1, 1)) for n in (1, 2, 30)] == [2, 3, 3]


class Claims(ToySession):
    """Changes what replays claim."""

    def changed(self, claim: dict[str, Any]) -> dict[str, Any]:
        return claim

    def claim(self, batch: StepBatch, arm: Arm, bucket: int | None, padded: int) -> dict[str, Any]:
        claim = super().claim(batch, arm, bucket, padded)
        return self.changed(claim) if bucket else claim


class ExtraCopy(Claims):
    def changed(self, claim: dict[str, Any]) -> dict[str, Any]:
        return claim | {"copies": claim["copies"] | {"copy_in": {"count": 1, "bytes": 64}}}


class RegionClone(Claims):
    def changed(self, claim: dict[str, Any]) -> dict[str, Any]:
        return claim | {"copies": claim["copies"] | {"handoff": {"count": 2, "bytes": 64}}}


class DoubleOutput(Claims):
    def changed(self, claim: dict[str, Any]) -> dict[str, Any]:
        return claim | {
            "copies": claim["copies"] | {"output": {"count": 2, "bytes": claim["copies"]["output"]["bytes"]}}
        }


class WideOutput(Claims):
    def changed(self, claim: dict[str, Any]) -> dict[str, Any]:
        return claim | {
            "copies": claim["copies"] | {"output": {"count": 1, "bytes": 5 * claim["copies"]["output"]["bytes"]}}
        }


class ExtraSegment(Claims):
    def changed(self, claim: dict[str, Any]) -> dict[str, Any]:
        return claim | {"segments": claim["segments"] + 1}


class LostRegion(Claims):
    def changed(self, claim: dict[str, Any]) -> dict[str, Any]:
        return claim | {"regions": claim["regions"] - 1}


class UnstagedTable(Claims):
    def changed(self, claim: dict[str, Any]) -> dict[str, Any]:
        staging = claim["copies"]["staging"]
        return claim | {"copies": claim["copies"] | {"staging": {"count": 3, "bytes": staging["bytes"] - 8}}}


class Recompiles(Claims):
    def changed(self, claim: dict[str, Any]) -> dict[str, Any]:
        return claim | {"recompiles": 1}


@pytest.mark.parametrize(
    ("fault", "name", "says"),
    [
        (ExtraCopy, "closed.copies.copy_in", "1 copy_in copies of 64 bytes instead of 0"),
        (RegionClone, "closed.copies.handoff", "2 handoff copies"),
        (DoubleOutput, "closed.copies.output", "2 output copies"),
        (WideOutput, "closed.copies.output", "instead of 1 of 128"),
        (ExtraSegment, "closed.segments", "4 segments instead of 3"),
        (LostRegion, "closed.regions", "1 regions instead of 2"),
        (UnstagedTable, "closed.copies.staging", "3 staging copies"),
        (Recompiles, "closed.compiles_after_capture", "recompiles in arm R"),
    ],
)
def test_a_count_that_does_not_follow_from_the_cell_fails_its_own_gate_alone(
    fault: type[ToySession], name: str, says: str
) -> None:
    result = measured(fault, input_sets=2)
    assert failed(result) == {name}
    assert says in gate(result, name).message


class Captures(ToySession):
    changes: dict[str, Any] = {}  # noqa: RUF012 - a constant of each planted fault

    def capture(self) -> dict[str, Any]:
        return dict(super().capture()) | self.changes


def capturing(**changes: Any) -> type[ToySession]:
    return type("Planted", (Captures,), {"changes": changes})


PIECES = {
    "num_piecewise_graphs_seen": 5,
    "num_piecewise_capturable_graphs_seen": 3,
    "num_inductor_compiles": 3,
    "num_cache_hits": 0,
    "num_piece_reuses": 0,
}


@pytest.mark.parametrize(
    ("compiles", "says"),
    [
        (PIECES | {"num_piecewise_graphs_seen": 6}, "num_piecewise_graphs_seen is 6 instead of 5"),
        (PIECES | {"num_inductor_compiles": 4}, "Inductor ran 4 times for 3 distinct pieces"),
        (PIECES | {"num_inductor_compiles": 1}, "do not make 3 pieces"),
        (PIECES | {"recompiles": 1}, "1 recompiles"),
        ({}, "num_piecewise_graphs_seen is None"),
    ],
)
def test_compile_counts_that_do_not_follow_from_the_layers_fail(compiles: dict[str, int], says: str) -> None:
    result = measured(capturing(compiles=compiles), input_sets=2)
    assert failed(result) == {"closed.compiles"}
    assert says in gate(result, "closed.compiles").message


def test_a_warm_start_that_loads_every_piece_is_as_good_as_a_cold_one() -> None:
    assert (
        failed(measured(capturing(compiles=PIECES | {"num_inductor_compiles": 0, "num_cache_hits": 3}), input_sets=2))
        == set()
    )


def test_code_generated_at_level_zero_is_a_fault() -> None:
    result = measured(
        capturing(compiles={"num_inductor_compiles": 1, "num_piecewise_graphs_seen": 0}), level=0, input_sets=2
    )
    assert failed(result) == {"closed.compiles"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"segments": {1: 3, 2: 3, 4: 4}}, "bucket 4 has 4 segments instead of 3"),
        ({"regions": {1: 2, 2: 2}}, "bucket 4 has None regions"),
        ({"nodes": {1: 12, 2: 0, 4: 12}}, "bucket 2 has no nodes"),
    ],
)
def test_a_recording_that_does_not_have_its_modes_shape_fails(changes: dict[str, Any], says: str) -> None:
    result = measured(capturing(**changes), input_sets=2)
    assert failed(result) == {"closed.recordings"}
    assert says in gate(result, "closed.recordings").message


def test_a_capture_report_that_went_through_json_is_read_the_same() -> None:
    tables = {
        "segments": {"1": 3, "2": 3, "4": 3},
        "regions": {"1": 2, "2": 2, "4": 2},
        "nodes": {"1": 9, "2": 9, "4": 9},
    }
    assert failed(measured(capturing(**tables), input_sets=2)) == set()


def test_an_engine_without_a_staging_layout_is_told_so_and_not_judged() -> None:
    class NoLayout(ToySession):
        def expected(self) -> dict[str, Any]:
            return {name: value for name, value in super().expected().items() if name != "staging"}

    result = measured(NoLayout, input_sets=2)
    assert gate(result, "closed.copies.staging").status is Status.NOT_APPLICABLE
    assert failed(result) == set()


def test_what_one_step_costs_is_kept_for_baselines_whether_it_was_replayed_or_not() -> None:
    counters = measured().counters
    assert set(counters["per_bucket"]) == {"1", "2", "4", "eager 5"}
    assert counters["per_bucket"]["4"]["segments"] == 3
    assert counters["per_bucket"]["eager 5"]["segments"] == 0
    assert "regions" not in counters["per_bucket"]["eager 5"], "without a recording a region is an ordinary call"
    assert counters["per_bucket"]["eager 5"]["copies"]["staging"]["count"] > 0
    assert counters["replayed_steps"] == counters["driven_steps"] - counters["fallbacks"]["batch_above_the_ladder"]
