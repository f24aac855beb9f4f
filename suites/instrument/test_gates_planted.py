"""A gate without a planted fault that it catches is not evidence: one fault at a time in an engine that is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.engines.base import Arm, PadFill, StepBatch
from harness.records import Status
from suites.instrument.probe_bench import failed, gate, measured
from suites.instrument.toy_session import HIDDEN, VOCAB, Inputs, ToySession, Weights

CONTROLS: list[dict[str, Any]] = [
    {},
    {"mode": "FULL"},
    {"mode": "FULL_DECODE_ONLY"},
    {"mode": "NONE"},
    {"mode": "NONE", "level": 0},
    {"mode": "TR_HYBRID", "level": 0},
    {"dtype": "bfloat16"},
    {"lane": "float32"},
    {"soak_steps": 20},
    {"ladder": [1]},
    {"ladder": [4]},
    {"ladder": [3, 5]},
    {"workload": "prefill"},
    {"workload": "prefill", "mode": "NONE"},
    {"workload": "prefill", "dtype": "bfloat16", "lane": "float32"},
]


@pytest.mark.parametrize("cell", CONTROLS, ids=lambda cell: ",".join(f"{k}={v}" for k, v in cell.items()) or "default")
def test_an_engine_without_a_fault_passes_every_gate(cell: dict[str, Any]) -> None:
    result = measured(**cell)
    assert failed(result) == set(), [g.message for g in result.gates if g.status is Status.FAIL]
    assert gate(result, "G1").evidence["compared"] > 0


class Replaying(ToySession):
    """Knows, while a step runs, which bucket is replayed (None: an arm without a graph) and which came before."""

    bucket: int | None = None
    before: int | None = None
    replays = 0

    def staged(self, batch: StepBatch, rows: int, pad: PadFill, bucket: int | None) -> Inputs:
        if bucket is not None:
            self.before, self.replays = self.bucket_replayed, self.replays + 1
            self.bucket_replayed = bucket
        self.bucket = bucket
        return super().staged(batch, rows, pad, bucket)

    bucket_replayed: int | None = None


class StaleRow(Replaying):
    """Row 0 of a recording's inputs is copied once and never again."""

    def copy_inputs(self, inputs: Inputs, fresh: Inputs, live: int) -> None:
        kept = {name: getattr(inputs, name)[0].clone() for name in ("ids", "positions", "slots", "tables")}
        used = bool(inputs.live.any())
        super().copy_inputs(inputs, fresh, live)
        if self.bucket is not None and used:
            for name, value in kept.items():
                getattr(inputs, name)[0] = value


def test_an_input_row_that_is_never_copied_again_is_named_stale() -> None:
    result = measured(StaleRow)
    # The stale row also reads and writes slots of a request that is not in the step.
    assert {"G1"} <= failed(result) <= {"G1", "G2", "G2.kv"}
    assert "STALE" in gate(result, "G1").message
    assert "replay of bucket" in gate(result, "G1").message


class StaleTokens(Replaying):
    """Token ids of a recording lag one step behind."""

    def copy_inputs(self, inputs: Inputs, fresh: Inputs, live: int) -> None:
        ids = inputs.ids[:live].clone()
        used = bool(inputs.live.any())
        super().copy_inputs(inputs, fresh, live)
        if self.bucket is not None and used:
            inputs.ids[:live] = ids


def test_token_ids_that_lag_a_step_behind_fail_g1_alone() -> None:
    assert failed(measured(StaleTokens)) == {"G1"}


class ConstantTable(Replaying):
    """Block tables are copied only when they changed: a legal saving."""

    def copy_inputs(self, inputs: Inputs, fresh: Inputs, live: int) -> None:
        if self.bucket is not None and torch.equal(inputs.tables[:live], fresh.tables[:live]):
            tables = inputs.tables.clone()
            super().copy_inputs(inputs, fresh, live)
            inputs.tables.copy_(tables)
        else:
            super().copy_inputs(inputs, fresh, live)


def test_metadata_that_did_not_change_need_not_be_copied() -> None:
    assert failed(measured(ConstantTable)) == set()


class OutputNotWritten(ToySession):
    def write_output(self, bucket: int, hidden: torch.Tensor) -> None:
        self.outputs[bucket][: bucket - 1] = hidden[: bucket - 1]


def test_a_last_row_that_no_replay_writes_keeps_its_sentinel() -> None:
    result = measured(OutputNotWritten)
    assert failed(result) >= {"G1", "G1.first"}
    assert "not written" in gate(result, "G1").message


class LiveRowsOnly(Replaying):
    """Pad rows of the output are left as they are: nobody may read them."""

    def staged(self, batch: StepBatch, rows: int, pad: PadFill, bucket: int | None) -> Inputs:
        self.live = batch.rows
        return super().staged(batch, rows, pad, bucket)

    def write_output(self, bucket: int, hidden: torch.Tensor) -> None:
        self.outputs[bucket][: self.live] = hidden[: self.live]


def test_pad_rows_of_the_output_need_not_be_written() -> None:
    assert failed(measured(LiveRowsOnly)) == set()


class FirstReplayWrong(Replaying):
    def write_output(self, bucket: int, hidden: torch.Tensor) -> None:
        super().write_output(bucket, hidden)
        if bucket not in self.last_arm_inputs.setdefault(-1, Inputs(8, 1)).ids.tolist():
            self.last_arm_inputs[-1].ids[self.replays % 8] = bucket
            self.outputs[bucket][0, 3] += 1


def test_a_fault_of_the_first_replay_alone_is_judged_apart() -> None:
    result = measured(FirstReplayWrong)
    assert failed(result) == {"G1.first"}
    assert "first replay alone" in gate(result, "G1.first").message


class AfterAnotherBucket(Replaying):
    """The recording of bucket 4 reads a block that bucket 1's replay overwrites."""

    def write_output(self, bucket: int, hidden: torch.Tensor) -> None:
        super().write_output(bucket, hidden)
        if bucket == 4 and self.before == 1:
            self.outputs[bucket][0, 5] *= 1.5


def test_a_block_that_another_bucket_overwrites_is_named_lifetime() -> None:
    result = measured(AfterAnotherBucket)
    assert {"G1"} <= failed(result) <= {"G1", "G1.first"}
    assert "LIFETIME" in gate(result, "G1").message
    assert "bucket 4" in gate(result, "G1").message


class FrozenLength(Replaying):
    """A replay attends to no more tokens than the recording saw."""

    def attention(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        if self.bucket is None:
            return super().attention(q, k_cache, v_cache, inputs)
        kept = inputs.positions.clone()
        inputs.positions.clamp_(max=40)
        mixed = super().attention(q, k_cache, v_cache, inputs)
        inputs.positions.copy_(kept)
        return mixed


def test_a_context_length_frozen_into_a_recording_is_caught_by_longer_contexts() -> None:
    result = measured(FrozenLength)
    assert {"G1", "G1.first"} >= failed(result) >= {"G1"}
    assert "FROZEN" in gate(result, "G1").message


class FlippedBit(Replaying):
    """One mantissa bit of one element, once in forty replays."""

    def write_output(self, bucket: int, hidden: torch.Tensor) -> None:
        super().write_output(bucket, hidden)
        if self.replays % 40 == 39:
            self.outputs[bucket][0].view(torch.int32)[7] ^= 1


def test_a_single_flipped_bit_in_one_replay_is_not_forgiven() -> None:
    result = measured(FlippedBit)
    assert failed(result) in ({"G1"}, {"G2"}, {"G1", "G2"})
    assert "1 elements by their bits" in gate(result, sorted(failed(result))[0]).message


class SoakFault(Replaying):
    def write_output(self, bucket: int, hidden: torch.Tensor) -> None:
        super().write_output(bucket, hidden)
        if self.replays > 100:
            self.outputs[bucket][0, 0] += 1


def test_a_fault_that_needs_a_hundred_replays_is_found_by_the_soak_and_only_by_it() -> None:
    assert failed(measured(SoakFault)) == set()
    assert failed(measured(SoakFault, soak_steps=80)) == {"G1.soak"}


class LeakyMean(ToySession):
    """A statistic over all rows of the bucket, pad rows included, reaches live rows only if it is not finite."""

    def forward(self, weights: Weights, caches: list[torch.Tensor], inputs: Inputs, *, compiled: bool) -> torch.Tensor:
        hidden = super().forward(weights, caches, inputs, compiled=compiled)
        return hidden + 0 * hidden.mean(dim=0, keepdim=True) if compiled else hidden


def test_pad_rows_that_leak_through_a_mean_over_the_bucket_fail_g2() -> None:
    result = measured(LeakyMean)
    assert failed(result) == {"G2"}
    assert "nan_hidden" in gate(result, "G2").message


def test_a_leak_that_no_graph_has_a_part_in_is_found_without_graphs_too() -> None:
    assert failed(measured(LeakyMean, mode="NONE")) == {"G2"}
    assert failed(measured(LeakyMean, mode="NONE", workload="prefill")) == {"G2"}


class WideMean(ToySession):
    """The same statistic with a weight: pad rows change it whatever they hold."""

    def forward(self, weights: Weights, caches: list[torch.Tensor], inputs: Inputs, *, compiled: bool) -> torch.Tensor:
        hidden = super().forward(weights, caches, inputs, compiled=compiled)
        return hidden + 0.01 * hidden.mean(dim=0, keepdim=True) if compiled else hidden


def test_a_statistic_over_pad_rows_fails_g2_and_the_error_rule() -> None:
    assert failed(measured(WideMean)) >= {"G2", "G3"}


class PadWritesSlot(ToySession):
    """Slot -1 through plain indexing: the last slot of the cache."""

    def write_cache(self, cache: torch.Tensor, rows: torch.Tensor, inputs: Inputs) -> None:
        super().write_cache(cache, rows, inputs)
        if not bool(inputs.live.all()):
            cache[-2, -1] = rows[~inputs.live][0]


def test_a_pad_row_that_writes_a_cache_slot_is_found_where_it_wrote() -> None:
    result = measured(PadWritesSlot)
    assert "G2.kv" in failed(result)
    assert "block 47, offset 7" in gate(result, "G2.kv").message


class ReadsUnowned(ToySession):
    """Masked slots still enter the product: 0 * NaN."""

    def attention(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        mixed = super().attention(q, k_cache, v_cache, inputs)
        past = v_cache[inputs.tables].flatten(1, 2)
        return mixed + 0 * past.sum(dim=1)


def test_slots_past_a_rows_length_that_enter_its_sum_fail_g2() -> None:
    result = measured(ReadsUnowned)
    assert "G2" in failed(result)
    assert "unowned cache slots" in gate(result, "G2").message


class WrongLayer(ToySession):
    """One layer's weights are 1 % too large in the compiled arm."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.compiled_weights = Weights(self.dtype)
        self.compiled_weights.up[1] = (self.compiled_weights.up[1].float() * 1.01).to(self.dtype)


def test_one_percent_in_one_layer_fails_g3_in_the_float32_lane_by_orders_of_magnitude() -> None:
    found = gate(measured(WrongLayer, lane="float32"), "G3")
    assert found.status is Status.FAIL
    assert found.measured is not None
    assert found.threshold is not None
    assert found.measured > 100 * found.threshold


def test_the_bits_of_a_wrong_layer_still_agree_between_replay_and_compiled_arm() -> None:
    assert not failed(measured(WrongLayer)) & {"G0", "G1", "G1.first", "G2", "G2.kv", "G4"}


class ZeroedLogits(ToySession):
    def logits(self, hidden: torch.Tensor, weights: Weights, arm: Arm) -> torch.Tensor:
        logits = super().logits(hidden, weights, arm)
        if arm in (Arm.C, Arm.R):
            logits[0, : VOCAB // 4] = 0
        return logits


def test_zeroed_logits_in_one_row_fail_g3_and_g5() -> None:
    result = measured(ZeroedLogits)
    assert {"G3", "G5"} <= failed(result) <= {"G3", "G5", "G6"}
    assert "logits, row" in gate(result, "G3").message


class FlippedToken(ToySession):
    """The first row's two best tokens change places."""

    def logits(self, hidden: torch.Tensor, weights: Weights, arm: Arm) -> torch.Tensor:
        logits = super().logits(hidden, weights, arm)
        if arm in (Arm.C, Arm.R):
            best = logits[0].topk(2).indices
            logits[0, best] = logits[0, best.flip(0)]
        return logits


def test_a_token_that_flips_with_a_wide_margin_fails_g6() -> None:
    result = measured(FlippedToken)
    assert "G6" in failed(result)
    assert "arm C chooses token" in gate(result, "G6").message
    assert not failed(result) & {"G1", "G1.first", "G2", "G4"}


class NanRow(ToySession):
    def forward(self, weights: Weights, caches: list[torch.Tensor], inputs: Inputs, *, compiled: bool) -> torch.Tensor:
        hidden = super().forward(weights, caches, inputs, compiled=compiled)
        if compiled:
            hidden[0, HIDDEN // 2] = torch.nan
        return hidden


def test_nan_is_a_failure_even_where_both_arms_agree_on_it() -> None:
    result = measured(NanRow)
    assert failed(result) >= {"G1", "G1.first", "G3", "G5", "G6"}
    assert "agree on NaN" in gate(result, "G1").message


class Unrepeatable(ToySession):
    """An atomic sum: the compiled arm rounds otherwise each time."""

    def forward(self, weights: Weights, caches: list[torch.Tensor], inputs: Inputs, *, compiled: bool) -> torch.Tensor:
        hidden = super().forward(weights, caches, inputs, compiled=compiled)
        if compiled:
            self.turn = getattr(self, "turn", 0) + 1
            hidden = hidden * (1 + (self.turn % 4) * 1.2e-7)
        return hidden


def test_an_arm_that_does_not_repeat_is_reported_and_its_replays_judged_by_error() -> None:
    result = measured(Unrepeatable)
    assert gate(result, "G0").status is Status.REPORT
    assert "judged by error" in gate(result, "G1").message
    assert gate(result, "G1").status is Status.PASS
    assert "G1.first" not in {g.gate for g in result.gates}


class RecompilesLate(ToySession):
    def counters(self) -> dict[str, int | float]:
        return {"compile.num_inductor_compiles": 3 if self.steps < 50 else 4}


def test_a_compile_after_capture_voids_the_bits() -> None:
    assert failed(measured(RecompilesLate)) == {"G1.artefact"}


class OtherCode(ToySession):
    def artefacts(self) -> dict[str, str]:
        return {"forward": "5b1d" if self.steps < 50 else "77aa"}


def test_an_artefact_that_changes_between_recording_and_replay_is_named() -> None:
    result = measured(OtherCode)
    assert failed(result) == {"G1.artefact"}
    assert "artefact forward" in gate(result, "G1.artefact").message


class ShortHidden(ToySession):
    def sliced(self, hidden: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        return hidden[: batch.rows - 1]


def test_an_engine_that_returns_fewer_rows_than_live_is_an_error_and_not_a_pass() -> None:
    with pytest.raises(ValueError, match="live rows"):
        measured(ShortHidden)
