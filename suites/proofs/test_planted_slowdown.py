"""A comparison that has never found a slowdown is no evidence. Ten fresh pairs of processes and one confirmation take
minutes, so `make proofs` runs this and `make test` does not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.records import Fate
from suites.instrument.test_compare import compare, fate, git, repository

__all__ = ["repository"]  # a fixture


@pytest.mark.timeout(900)  # ten fresh pairs of processes, each of which imports torch
def test_a_planted_slowdown_is_found_confirmed_and_named(repository: Path, tmp_path: Path) -> None:
    code, out, run = compare(repository, tmp_path, "--baseline", "base", "--candidate", "slow")
    assert (code, fate(run)) == (1, Fate.SLOWER), out
    gates = {gate.gate: gate for gate in run.lanes[0].gates}
    assert gates["latency.compare.1"].measured == pytest.approx(0.5, abs=0.15)
    assert "measured again" in gates["latency.compare.1"].message
    assert "look at host code first" in gates["latency.artefacts"].message
    assert {pair.again for pair in run.pairs} == {True, False}
    assert run.header.sides["candidate"]["commit"] == git(repository, "rev-parse", "slow")
    assert "base" in (run.verdict.baseline if run.verdict else "")
    assert str(tmp_path) not in str(run.header.sides)
