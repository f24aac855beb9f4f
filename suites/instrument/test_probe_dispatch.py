"""A step in the wrong bucket, or in none, gives right tokens: only the harness's own arithmetic sees it."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from harness.engines.base import Arm, Dispatch, Phase, StepBatch
from harness.profile import Limits
from harness.records import Status
from suites.instrument.probe_bench import LIMITS, failed, gate, measured
from suites.instrument.toy_session import ToySession

NO_POLICY = Limits(max_num_seqs=5, max_model_len=64, block_size=8, num_blocks=48, eager_above_ladder=False)


class BisectRight(ToySession):
    def bucket_for(self, size: int) -> int | None:
        index = bisect_right(self.sizes, size)
        return self.sizes[index] if index < len(self.sizes) else None


def test_exact_batches_moved_one_bucket_up_are_named_with_their_sizes() -> None:
    result = measured(BisectRight, input_sets=2)
    assert {"dispatch.plan", "dispatch.steps", "dispatch.holes"} & failed(result) >= {"dispatch.plan", "dispatch.steps"}
    plan = gate(result, "dispatch.plan")
    assert "batch 1: TR_HYBRID bucket 2 instead of TR_HYBRID bucket 1" in plan.message
    assert "batch 4: eager instead of TR_HYBRID bucket 4" in plan.message
    assert plan.measured == 3.0


class PlansRightRunsWrong(ToySession):
    """Only the promise is right."""

    def bucket_of(self, batch: StepBatch) -> int | None:
        return BisectRight.bucket_for(self, len(batch.token_ids))  # type: ignore[arg-type]


def test_a_plan_that_the_steps_do_not_keep_fails_by_the_steps() -> None:
    result = measured(PlansRightRunsWrong, input_sets=2)
    assert "dispatch.plan" not in failed(result)
    assert {"dispatch.steps", "closed.fallbacks", "closed.replay_share"} <= failed(result)


class QuietlyEager(ToySession):
    """Bucket 2 is never replayed; the claim is honest and the answers are right."""

    def bucket_of(self, batch: StepBatch) -> int | None:
        bucket = super().bucket_of(batch)
        return None if bucket == 2 else bucket


def test_a_bucket_that_never_replays_is_an_unexplained_fallback() -> None:
    result = measured(QuietlyEager, input_sets=2)
    assert failed(result) >= {"dispatch.steps", "closed.fallbacks", "closed.replay_share", "closed.segments"}
    assert "size 2 has a bucket and did not replay it" in gate(result, "closed.fallbacks").message
    share = gate(result, "closed.replay_share").measured
    assert share is not None
    assert 0 < share < 1
    assert not failed(result) & {"G1", "G2", "G3", "dispatch.plan"}


def test_the_first_size_past_the_ladder_without_a_policy_is_a_hole() -> None:
    result = measured(limits=NO_POLICY)
    assert failed(result) == {"dispatch.holes"}
    assert "batch 5 run eagerly and no stated policy" in gate(result, "dispatch.holes").message


def test_the_same_size_under_a_stated_policy_is_not() -> None:
    assert LIMITS.eager_above_ladder
    assert failed(measured()) == set()


class NoReason(ToySession):
    def plan(self, phase: Phase, batch: int, rows: int) -> Dispatch:
        found = super().plan(phase, batch, rows)
        return Dispatch(found.phase, found.batch, found.rows, found.mode, found.bucket, "", found.declared)


def test_an_eager_step_without_a_reason_fails_even_under_a_policy() -> None:
    result = measured(NoReason, input_sets=2)
    assert failed(result) == {"dispatch.holes"}
    assert "gives no reason" in gate(result, "dispatch.holes").message


class LostBucket(ToySession):
    def capture(self) -> dict[str, Any]:
        claim = dict(super().capture())
        claim["buckets"] = {"decode": [1, 4]}
        return claim


def test_a_bucket_that_capture_dropped_is_named() -> None:
    result = measured(LostBucket, input_sets=2)
    assert failed(result) == {"dispatch.ladder"}
    assert "missing [2]" in gate(result, "dispatch.ladder").message


class WrongPads(ToySession):
    def claim(self, batch: StepBatch, arm: Arm, bucket: int | None, padded: int) -> dict[str, Any]:
        return super().claim(batch, arm, bucket, padded) | {"padded_rows": padded}


def test_a_claim_that_counts_rows_wrongly_disagrees_with_the_driven_steps() -> None:
    assert failed(measured(WrongPads, input_sets=2)) == {"dispatch.steps"}


def test_prefill_is_enumerated_to_the_first_token_count_past_the_largest_bucket() -> None:
    result = measured(workload="prefill")
    assert "all 25 sizes of tokens" in gate(result, "dispatch.plan").message


def test_a_mode_without_graphs_has_no_ladder_to_fall_through() -> None:
    result = measured(mode="NONE")
    assert gate(result, "dispatch.holes").status is Status.NOT_APPLICABLE
    assert gate(result, "dispatch.plan").status is Status.PASS
