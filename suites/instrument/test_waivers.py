"""A list of known failures without owners only grows. A waiver has an owner, a reason, a link and a last day; an
expired one fails the sign-off, and wrong numerics cannot be waived.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.errors import FAILED, INCOMPLETE, PASS, UsageError
from harness.records import CellVerdict, Fate, GateResult, LaneRecord, Phase, RunHeader, Status, Verdict
from harness.standing import Standing
from harness.store import RunData
from harness.verdicts import conclude
from harness.waivers import WAIVABLE, Waiver, apply, load_waivers

TODAY = date(2026, 5, 4)
TEXT = """
[[waiver]]
cell = "*mode=FULL*"
fates = ["cost-changed"]
owner = "graphs"
reason = "the extra copy goes with the next attention kernel"
link = "https://example.org/issues/7"
expires = 2026-05-04
"""


def waiver(**more: Any) -> Waiver:
    fields = {
        "cell": "a",
        "fates": [Fate.COST_CHANGED],
        "owner": "me",
        "reason": "why",
        "link": "where",
        "expires": TODAY,
    }
    return msgspec.convert({**fields, **more}, Waiver)


def sign_off(gate: str, *waivers: Waiver) -> Verdict:
    head = msgspec.convert(
        {
            **dict.fromkeys(("run", "profile", "profile_hash", "started"), "x"),
            **{"command": [], "cells": ["a"], "units": ["a#serving"], "declared": {}, "device": "cpu"},
            **{name: {} for name in ("fingerprint", "engine_revision", "harness_revision")},
        },
        RunHeader,
    )
    gates = [
        GateResult(gate="G0", status=Status.PASS, message=""),
        GateResult(gate=gate, status=Status.FAIL, message=""),
    ]
    record = LaneRecord(
        cell="a", axes={}, lane="serving", dtype="float32", fate=Fate.MEASURED, phase=Phase.REPLAY, gates=gates
    )
    standing = Standing(waivers=waivers, today=TODAY)
    return conclude(RunData(head, [record]), executed=1, finished="", seconds=1.0, standing=standing)


def test_a_waiver_holds_through_its_last_day_and_the_verdict_says_who_answers() -> None:
    verdict = sign_off("counter.step", waiver())
    assert (verdict.exit_code, verdict.title) == (PASS, "PASS: 1 of 1 cells, 1 waived")
    assert verdict.cells[0].fate is Fate.WAIVED
    assert "waived by me until 2026-05-04: why (where); it is cost-changed" in verdict.cells[0].reason
    assert any(reason.startswith("a is waived by me") for reason in verdict.reasons)


def test_an_expired_waiver_fails_the_sign_off_even_where_nothing_else_does() -> None:
    late = waiver(expires=date(2026, 5, 3))
    verdict = sign_off("counter.step", late)
    assert (verdict.exit_code, verdict.cells[0].fate) == (FAILED, Fate.COST_CHANGED)
    assert any("expired on 2026-05-03" in reason for reason in verdict.reasons)
    alone = sign_off("unaccepted.step", late, waiver(fates=[Fate.FASTER]))
    assert (alone.exit_code, alone.title) == (FAILED, "FAIL: a waiver has expired")


def test_a_waiver_excuses_only_the_fates_that_it_names() -> None:
    verdict = sign_off("latency.compare", waiver())
    assert (verdict.exit_code, verdict.cells[0].fate) == (FAILED, Fate.SLOWER)
    assert any("excused nothing" in reason for reason in verdict.reasons)


def test_an_improvement_under_a_waiver_needs_no_accepting_yet() -> None:
    assert sign_off("unaccepted.step").exit_code == INCOMPLETE
    assert sign_off("unaccepted.step", waiver(fates=[Fate.FASTER])).exit_code == PASS


@pytest.mark.parametrize("fate", sorted(set(Fate) - WAIVABLE))
def test_wrong_or_missing_evidence_cannot_be_waived_even_by_a_waiver_that_says_so(fate: Fate) -> None:
    verdict = CellVerdict(cell="a", fate=fate, reason="")
    assert apply(verdict, [waiver(fates=list(Fate))], TODAY) == verdict


def test_a_waiver_file_is_read_with_patterns_and_dates(tmp_path: Path) -> None:
    (tmp_path / "waivers.toml").write_text(TEXT)
    (read,) = load_waivers(tmp_path)
    assert read.covers(CellVerdict(cell="level=3,mode=FULL,ladder=1", fate=Fate.COST_CHANGED, reason=""))
    assert not read.covers(CellVerdict(cell="level=3,mode=NONE", fate=Fate.COST_CHANGED, reason=""))
    assert load_waivers(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('"cost-changed"', '"wrong"', "wrong cannot be waived"),
        ('"cost-changed"', '"not-run"', "not-run cannot be waived"),
        ('"cost-changed"', "", "fates is empty"),
        ('"graphs"', '" "', "owner is empty"),
        ('link = "https://example.org/issues/7"', "", "link"),
        ("expires = 2026-05-04", 'expires = "soon"', "expires"),
        ("expires = 2026-05-04", "", "expires"),
        ("[[waiver]]", "[[waivers]]", "waivers"),
    ],
)
def test_a_waiver_that_breaks_a_rule_ends_the_command(tmp_path: Path, old: str, new: str, rule: str) -> None:
    assert old in TEXT
    (tmp_path / "waivers.toml").write_text(TEXT.replace(old, new))
    with pytest.raises(UsageError, match=rule):
        load_waivers(tmp_path)
