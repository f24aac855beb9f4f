"""A warm start that compiled again was called warm, since its seconds looked plausible beside a slow cold one.

The benchmark of starts judges counts exactly, pairs within a round, and says where too few pairs say nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from tools.start_up import __main__ as command
from tools.start_up.child import Start
from tools.start_up.claims import COLD_AGAINST_EACH, Claim, Round, claims, distinct_pieces

COMPILING = ", less what a warm start takes"
IMPORT = " and the import of torch's compiler"


def start(whole_s: float, compiles: int = 0, trace_s: float = 0.0, import_s: float = 0.0) -> dict[str, Any]:
    counters = {"num_inductor_compiles": compiles}
    return {"whole_s": whole_s, "trace_s": trace_s, "compiler_import_s": import_s, "counters": counters}


def one_round(**changes: dict[str, Any]) -> Round:
    """A level-3 round in which everything holds; names are sides with an underscore for the space."""
    sides = {
        "0": start(10.0),
        "3 cold": start(30.0, 3, 8.0),
        "3 warm": start(18.0, 0, 7.9),
        "3 each": start(100.0, 31, 8.0),
    }
    return {**sides, **{name.strip("_").replace("_", " "): side for name, side in changes.items()}}


def judged(rounds: list[Round], split_ops: int = 30) -> dict[str, Claim]:
    return {claim.name: claim for claim in claims(rounds, [0, 3], split_ops)}


def spread(count: int, **changes: dict[str, Any]) -> list[Round]:
    """Rounds of a machine whose speed drifts, which pairs cancel."""
    rounds: list[Round] = []
    for number in range(count):
        factor = 1 + number / 10
        sides = one_round(**changes)
        rounds.append(
            {
                name: {part: value * factor if part.endswith("_s") else value for part, value in side.items()}
                for name, side in sides.items()
            }
        )
    return rounds


def test_a_start_as_it_should_be_holds_in_every_claim() -> None:
    found = judged(spread(5))
    assert len(found) == 6
    assert all(claim.holds for claim in found.values()), found


@pytest.mark.parametrize(
    ("side", "planted", "claim"),
    [
        ("_3_warm", start(18.0, 1, 7.9), "level 3 warm: Inductor compiles"),
        ("_3_cold", start(30.0, 31, 8.0), "level 3 cold: Inductor compiles"),
        ("_3_cold", start(30.0, 0, 8.0), "level 3 cold: Inductor compiles"),
        ("_3_warm", start(24.0, 0, 7.9, 6.0), "level 3: warm, trace left out"),
        ("_3_cold", start(60.0, 3, 8.0), "level 3: cold, against each piece by itself"),
    ],
)
def test_each_claim_fails_on_its_own_fault_and_no_other(side: str, planted: dict[str, Any], claim: str) -> None:
    found = judged(spread(5, **{side: planted}))
    assert [name for name, each in found.items() if not each.holds and name != claim + COMPILING] == [claim]
    assert found[claim].holds is False


def test_what_is_slow_is_told_from_what_torch_takes_to_be_imported() -> None:
    found = judged(spread(5, _3_warm=start(24.0, 0, 7.9, 3.0)))
    assert [found[f"level 3: warm, trace{and_import} left out"].holds for and_import in ("", IMPORT)] == [False, False]
    assert found[f"level 3: warm, trace{IMPORT} left out"].measured == pytest.approx(1.31)


def test_level_2_compiles_once_and_never_again() -> None:
    rounds = [{**one, "2 cold": start(30.0, 1, 8.0), "2 warm": start(18.0, 1, 7.9)} for one in spread(5)]
    found = {claim.name: claim for claim in claims(rounds, [0, 2], 30)}
    assert found["level 2 cold: Inductor compiles"].holds is True
    assert found["level 2 warm: Inductor compiles"].holds is False


def test_the_worst_start_decides_a_count() -> None:
    rounds = [*spread(4), one_round(_3_warm=start(18.0, 2, 7.9))]
    found = judged(rounds)["level 3 warm: Inductor compiles"]
    assert (found.measured, found.holds) == (2, False)


def test_one_pair_has_no_interval_and_decides_no_time() -> None:
    found = judged(spread(1))
    assert found["level 3: warm, trace left out"].holds is None
    assert found["level 3 warm: Inductor compiles"].holds is True


def test_a_cold_start_is_held_whole_against_each_piece_by_itself() -> None:
    found = judged(spread(5, _3_cold=start(36.0, 3, 30.0)))["level 3: cold, against each piece by itself"]
    assert found.measured == pytest.approx(0.36)
    assert found.threshold == pytest.approx(COLD_AGAINST_EACH)
    assert found.holds is False


def test_compiling_alone_is_told_from_what_every_start_takes() -> None:
    rounds = spread(5, _3_each=start(60.0, 31, 8.0), _3_cold=start(24.0, 3, 8.0))
    found = judged(rounds)
    assert found["level 3: cold, against each piece by itself"].holds is False
    alone = found["level 3: cold, against each piece by itself" + COMPILING]
    assert alone.holds is True
    assert alone.measured == pytest.approx(6 / 42)


def test_a_few_pairs_that_agree_decide_nothing() -> None:
    assert {claim.holds for name, claim in judged(spread(4)).items() if "warm, trace" in name} == {None}


def test_a_model_of_few_pieces_has_no_more_distinct_ones() -> None:
    assert [distinct_pieces(split_ops) for split_ops in (0, 1, 2, 30)] == [1, 2, 3, 3]


def test_a_real_start_in_a_process_of_its_own_counts_what_it_did() -> None:
    options = command._parser().parse_args(["--model", "random:tiny-llama"])
    found = command._run(command._start(options, 1), {})
    assert found["whole_s"] > found["seconds"]["import"] > 0
    assert 0 < found["trace_s"] < found["whole_s"]
    assert found["whole_s"] == pytest.approx(sum(found["seconds"].values()), rel=1e-6)
    assert 0 < found["compiler_import_s"] < found["whole_s"]
    assert found["counters"]["dynamo_as_is_count"] == 3
    assert "num_inductor_compiles" not in found["counters"]


def test_a_start_that_fails_says_how() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)level 0 ended with 1: .*no-such-model"):
        command._run(Start("no-such-model", 0, "NONE", "cpu", "float32", [1], True, 0.0), {})


@pytest.mark.parametrize(("within", "rounds"), [(None, 5), (100.0, 1), (249.0, 1), (250.0, 2), (350.0, 3)])
def test_no_round_is_begun_that_would_not_end_in_time(
    within: float | None, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first takes 150 s, of which 50 are the pieces by themselves, and each later one 100 s."""
    clock = [0.0]

    def taken(options: argparse.Namespace, number: int) -> Round:
        clock[0] += 100.0 if number else 150.0
        return {"3 each": start(50.0)} if number == 0 else {"0": start(10.0)}

    monkeypatch.setattr(command, "_round", taken)
    monkeypatch.setattr("tools.start_up.__main__.time.monotonic", lambda: clock[0])
    assert len(command._rounds(argparse.Namespace(rounds=5, each_rounds=1, within=within))) == rounds
