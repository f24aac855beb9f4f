"""A rule that excuses too much gates nothing; one that excuses too little gets widened. The limits of G3, G5, G6."""

from __future__ import annotations

import pytest
import torch

from harness.engines.base import Arm
from harness.probes.numerics.arms import ArmRun
from harness.probes.numerics.diagnosis import Replay, diagnose
from harness.probes.numerics.error_rule import Factors
from harness.probes.numerics.evidence import Evidence, Rows
from harness.probes.numerics.figures import row_figures
from harness.probes.numerics.g3 import compiler_gate
from harness.probes.numerics.g5 import logits_gate
from harness.probes.numerics.g6 import token_gate
from harness.records import Status

ROWS, HIDDEN, VOCAB = 64, 48, 96


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(hidden: torch.Tensor, logits: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> ArmRun:
    return ArmRun(Arm.E, hidden.to(dtype), logits.to(dtype), [], None)


HIDDEN_REF, LOGITS_REF = random(1, ROWS, HIDDEN), random(2, ROWS, VOCAB)
REFERENCE = run(HIDDEN_REF, LOGITS_REF, torch.float64)
NOISE_H, NOISE_L = 4e-3 * random(3, ROWS, HIDDEN), 4e-3 * random(4, ROWS, VOCAB)


def evidence(
    logits: torch.Tensor | None = None,
    hidden: torch.Tensor | None = None,
    eager_logits: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Evidence:
    """Eager is the reference with rounding noise; the compiled arm has other noise of the same size, unless given."""
    eager = run(HIDDEN_REF + NOISE_H, LOGITS_REF + NOISE_L if eager_logits is None else eager_logits)
    compiled = run(
        HIDDEN_REF + NOISE_H.flip(0) if hidden is None else hidden,
        LOGITS_REF + NOISE_L.flip(0) if logits is None else logits,
    )
    figures = [row_figures(arm, REFERENCE, range(ROWS)) for arm in (eager, compiled, compiled)]
    found = Evidence(dtype)
    found.widths = {"hidden": HIDDEN, "logits": VOCAB}
    found.add("step 0", Rows(*figures))
    return found


def test_other_rounding_of_the_same_size_passes_every_gate() -> None:
    clean = evidence()
    for judge in (compiler_gate, logits_gate, token_gate):
        assert judge(clean).status is Status.PASS, judge(clean).message


def test_a_gate_without_rows_fails_instead_of_passing() -> None:
    for judge in (compiler_gate, logits_gate, token_gate):
        result = judge(Evidence(torch.bfloat16))
        assert result.status is Status.FAIL
        assert "compared nothing" in result.message


def test_one_stale_row_among_sixty_four_fails_g3_by_its_row() -> None:
    hidden = HIDDEN_REF + NOISE_H.flip(0)
    hidden[17] = hidden[3]
    result = compiler_gate(evidence(hidden=hidden))
    assert result.status is Status.FAIL
    assert "hidden, row 17" in result.message


def test_half_a_row_of_logits_set_to_zero_fails_g3_by_its_row_and_g5() -> None:
    logits = LOGITS_REF + NOISE_L.flip(0)
    logits[5, : VOCAB // 2] = 0
    assert "logits, row 5" in compiler_gate(evidence(logits)).message
    assert logits_gate(evidence(logits)).status is Status.FAIL


def test_three_times_eagers_error_fails_the_whole_tensor() -> None:
    result = compiler_gate(evidence(hidden=HIDDEN_REF + 3 * NOISE_H))
    assert result.status is Status.FAIL
    assert result.measured is not None
    assert result.threshold is not None
    assert result.measured > result.threshold


def test_rows_may_be_as_bad_as_eagers_worst_rows_without_alarm() -> None:
    quiet = NOISE_H.clone()
    quiet[9] *= 0.1
    eager = run(HIDDEN_REF + quiet, LOGITS_REF + NOISE_L)
    compiled = run(HIDDEN_REF + NOISE_H, LOGITS_REF + NOISE_L)
    found = Evidence(torch.bfloat16)
    found.widths = {"hidden": HIDDEN, "logits": VOCAB}
    figures = [row_figures(arm, REFERENCE, range(ROWS)) for arm in (eager, compiled, compiled)]
    found.add("step 0", Rows(*figures))
    assert compiler_gate(found).status is Status.PASS


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_float64_does_not_have_fails_every_gate(value: float) -> None:
    logits = LOGITS_REF + NOISE_L.flip(0)
    logits[7, 0] = value
    broken = evidence(logits)
    for judge in (compiler_gate, logits_gate, token_gate):
        result = judge(broken)
        if value == float("-inf") and judge is token_gate:
            continue  # a token that cannot be chosen changes no choice; G3 and G5 have it
        assert result.status is Status.FAIL, judge.__module__
        assert "row 7" in result.message


@pytest.mark.parametrize(
    ("dtype", "rows", "width", "whole", "row"),
    [
        (torch.bfloat16, 64, 2048, 2.0, 2.0),
        (torch.bfloat16, 64, 576, 2.0, 3.0),
        (torch.bfloat16, 1, 576, 3.0, 3.0),
        (torch.float32, 64, 2048, 2.0, 4.0),
        (torch.float32, 64, 576, 2.0, 4.0),
    ],
)
def test_the_factor_follows_dtype_and_size(dtype: torch.dtype, rows: int, width: int, whole: float, row: float) -> None:
    assert Factors.of(dtype=dtype, rows=rows, width=width) == Factors(whole, row)


def test_a_token_flip_with_a_wide_margin_is_unexplained() -> None:
    logits = LOGITS_REF + NOISE_L
    row = int((logits.topk(2, dim=1).values[:, 0] - logits.topk(2, dim=1).values[:, 1]).argmax())
    top = logits[row].argmax()
    logits[row, top] = logits[row].min()
    result = token_gate(evidence(logits, eager_logits=LOGITS_REF + NOISE_L))
    assert result.status is Status.FAIL
    assert f"row {row}" in result.message


def test_a_token_flip_at_a_tie_is_excused_and_counted() -> None:
    eager = LOGITS_REF + NOISE_L
    first, second = eager[0].topk(2).indices.tolist()
    middle = float(eager[0, [first, second]].mean())
    reference_gap = 0.02  # bfloat16 near 2.5 steps by 0.016
    eager[0, first], eager[0, second] = middle + reference_gap, middle
    flipped = eager.clone()
    flipped[0, [first, second]] = eager[0, [second, first]]
    result = token_gate(evidence(flipped, eager_logits=eager))
    assert result.status is Status.PASS, result.message
    assert result.evidence["flips"] == 1
    assert 0 < result.evidence["excused_share"] < 1


def test_the_share_of_excused_positions_is_printed() -> None:
    assert "of 64 positions lie near a tie" in token_gate(evidence()).message


def replay(step: int, *, wrong: bool = False, **facts: object) -> Replay:
    values: dict[str, object] = {
        "bucket": 4,
        "set_index": step,
        "padded": False,
        "first": False,
        "after": 4,
        "longest": 10,
        "soak": False,
        "unwritten": False,
        "stale": False,
        "answer": step,
    }
    return Replay(step=step, wrong=wrong, **{**values, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replays", "kind"),
    [
        ([replay(0), replay(1, wrong=True, unwritten=True)], "not written"),
        ([replay(0), replay(1, wrong=True, stale=True)], "STALE"),
        ([replay(0, wrong=True, first=True), replay(1)], "first replay alone"),
        ([replay(0), replay(1, wrong=True, padded=True)], "PADDING"),
        ([replay(0), replay(1, wrong=True, after=2)], "LIFETIME"),
        ([replay(0), replay(1, wrong=True, longest=17)], "FROZEN host value"),
        ([replay(0, bucket=None, longest=99), replay(1), replay(2, wrong=True, longest=17)], "FROZEN host value"),
        ([replay(0, bucket=2), replay(1, wrong=True)], "bucket 4's recording alone"),
        ([replay(0, set_index=3), replay(1, wrong=True, set_index=3)], "carried over"),
        ([replay(0, wrong=True, set_index=3, answer=9), replay(1, wrong=True, set_index=3, answer=9)], "MOVED address"),
        ([replay(0, bucket=2), replay(1), *(replay(n, wrong=True, bucket=n % 2 * 2 + 2) for n in (2, 3, 4))], "step 2"),
        ([replay(0, set_index=3, after=2), replay(1), replay(2, wrong=True, set_index=3, after=2)], "now and then"),
    ],
)
def test_the_pattern_of_wrong_replays_names_the_kind(replays: list[Replay], kind: str) -> None:
    assert kind in diagnose(replays)


def test_a_pattern_that_the_wrong_replays_do_not_share_is_not_named() -> None:
    text = diagnose(
        [replay(0), replay(1, wrong=True, padded=True, longest=17), replay(2, wrong=True, after=2, longest=9)]
    )
    assert not any(kind in text for kind in ("PADDING", "LIFETIME", "FROZEN host value", "first replay"))


def test_a_buffer_that_was_replaced_is_not_blamed_on_the_order_of_buckets() -> None:
    before = [replay(0, bucket=2), replay(1, after=4), replay(2, bucket=2, after=4)]
    after = [replay(n, wrong=True, bucket=n % 2 * 2 + 2, after=4 - n % 2 * 2) for n in (3, 4, 5)]
    text = diagnose(before + after)
    assert "MOVED (every replay before step 3 is right" in text
    assert "LIFETIME" not in text
