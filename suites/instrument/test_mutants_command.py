"""`harness mutants` itself: a table of planted faults that says "caught" for the wrong reason is worse than none.

A fault that was never planted (the code it changes was renamed), one that another gate happened to see, and a control
that never ran all look like success in a list of green ticks. Here each of them is red and has a name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cells import Cell
from harness.errors import FAILED, FAULT, PASS, USAGE, UsageError
from harness.mutants import Mutant, Where, patching, swap, wrap
from harness.mutants.command import Choice, choose, exit_code
from harness.mutants.findings import REACHED, findings
from harness.mutants.kinds import KINDS
from harness.mutants.mutant import find_mutants, load_mutant
from harness.mutants.runner import Ground, Outcome, State, command, judge, run_mutant
from harness.mutants.table import idle_gates, markdown, summary
from harness.records import CellVerdict, Fate, GateResult, LaneRecord, Phase, RunHeader, Status, Verdict
from harness.store import RunData

CHECKOUT = Path(__file__).resolve().parents[2]


def mutant(**changes: object) -> Mutant:
    words = {"kind": "STALE", "variant": "one", "changes": "-", "control_is": "-", "caught_by": ("G1",), "says": "-"}
    return Mutant(**{**words, "plant": lambda: None, "control": lambda: None, **changes})  # type: ignore[arg-type]


def gate(name: str, status: Status = Status.FAIL, message: str = "it is wrong") -> GateResult:
    return GateResult(gate=name, status=status, message=message)


def run_of(
    engine: str,
    gates: list[GateResult],
    fate: Fate = Fate.MEASURED,
    reason: str = "",
    counters: dict[str, object] | None = None,
) -> RunData:
    cell = Cell.of(engine=engine)
    lane = LaneRecord(
        cell=cell.id,
        axes=dict(cell.as_dict()),
        lane="serving",
        dtype="float32",
        fate=fate,
        phase=Phase.REPLAY,
        gates=gates,
        reason=reason,
        counters={"engine": counters or {}},
    )
    lanes = [] if fate is Fate.NOT_RUN else [lane]
    return RunData(header(cell), lanes, verdict(cell, fate, reason))


def header(cell: Cell) -> RunHeader:
    return RunHeader(
        run="r",
        profile="p",
        profile_hash="h",
        command=[],
        started="",
        cells=[cell.id],
        units=[],
        declared={},
        device="cpu",
        fingerprint={},
        engine_revision={},
        harness_revision={},
    )


def verdict(cell: Cell, fate: Fate, reason: str) -> Verdict:
    cells = [CellVerdict(cell=cell.id, fate=fate, reason=reason)]
    counts = {"expected": 1, "executed": 1, "stored": 1, "reported": 1}
    return Verdict(
        run="r", exit_code=0, title="", reasons=[], cells=cells, baseline="", finished="", seconds=0.0, **counts
    )


def state_of(planted: RunData, control: RunData | None = None, **changes: object) -> State:
    silent = run_of("control", [gate("G1", Status.PASS)])
    return judge(mutant(**changes), planted, control or silent, 1.0).state


def test_a_fault_that_a_named_gate_sees_is_caught() -> None:
    assert state_of(run_of("planted", [gate("G2"), gate("G1")], Fate.WRONG)) is State.CAUGHT


def test_a_fault_that_only_another_gate_sees_is_not_caught() -> None:
    assert state_of(run_of("planted", [gate("G2"), gate("G1", Status.PASS)], Fate.WRONG)) is State.ELSEWHERE


def test_a_fault_that_nothing_sees_survives() -> None:
    assert state_of(run_of("planted", [gate("G1", Status.PASS)])) is State.SURVIVED


def test_a_control_that_fires_spoils_a_fault_that_was_caught() -> None:
    assert state_of(run_of("planted", [gate("G1")]), run_of("control", [gate("G0")], Fate.WRONG)) is State.ALARM


def test_a_control_whose_code_never_ran_is_no_control() -> None:
    idle = run_of("control", [gate("G1", Status.PASS)], counters={REACHED: 0})
    assert state_of(run_of("planted", [gate("G1")]), idle) is State.IDLE
    # A change of the command itself is entered there, and the worker's count says nothing about it.
    assert state_of(run_of("planted", [gate("G1")]), idle, where=Where.COMMAND) is State.CAUGHT


def test_a_crash_counts_with_its_phase_and_a_crash_elsewhere_does_not() -> None:
    crashed = run_of("planted", [], Fate.CRASHED, "CaptureError: item() at norm.py:3")
    assert state_of(crashed, caught_by=("crashed in replay",)) is State.CAUGHT
    assert state_of(crashed, caught_by=("crashed in capture",)) is State.ELSEWHERE


def test_a_patch_that_found_nothing_to_change_is_broken_and_not_caught() -> None:
    lost = run_of("planted", [], Fate.CRASHED, "PatchError in phase build: RMSNorm has no 'forwards'")
    assert state_of(lost, caught_by=("crashed in replay",)) is State.BROKEN


def test_a_fault_declared_to_survive_fails_once_something_sees_it() -> None:
    assert state_of(run_of("planted", [gate("G1", Status.PASS)]), survives="nothing times it") is State.KNOWN
    assert state_of(run_of("planted", [gate("G1")]), survives="nothing times it") is State.SEEN


def test_a_missing_record_is_found_in_the_verdict() -> None:
    run = run_of("planted", [], Fate.NOT_RUN, "no record of lane serving")
    assert [(f.name, f.message) for f in findings(run, "planted")] == [("not-run", "no record of lane serving")]


def test_exit_codes_tell_a_surviving_fault_from_one_that_could_not_be_planted() -> None:
    def outcome(state: State) -> Outcome:
        return Outcome(mutant(), state, None, (), None, 1.0)

    assert exit_code([outcome(State.CAUGHT), outcome(State.KNOWN)]) == PASS
    assert exit_code([outcome(State.CAUGHT), outcome(State.SURVIVED)]) == FAILED
    assert exit_code([outcome(State.SURVIVED), outcome(State.BROKEN)]) == FAULT
    assert exit_code([]) == FAILED


def test_the_table_counts_kinds_of_eighteen_and_names_idle_gates_and_missing_kinds() -> None:
    seen = run_of("planted", [gate("G1", message="row 0 | wrong"), gate("G4", Status.PASS)], Fate.WRONG)
    outcomes = [judge(mutant(), seen, run_of("control", [gate("G1", Status.PASS)]), 3.0)]
    assert idle_gates(outcomes) == ["G4"]
    lines = "\n".join(summary(outcomes))
    assert "1 of 18 kinds caught" in lines
    assert "not yet: RANKS" in lines
    page = markdown(outcomes, "on a test")
    assert "| STALE | one | caught | G1 | row 0 \\| wrong | 3 | silent |" in page


def test_swap_and_wrap_refuse_a_name_that_is_gone() -> None:
    owner = SimpleNamespace(present=1)
    with pytest.raises(patching.PatchError, match="no 'absent'"):
        swap(owner, "absent", 2)
    with pytest.raises(patching.PatchError, match="no 'absent'"):
        wrap(owner, "absent", lambda original: original)


def test_wrap_passes_the_original_and_counts_its_calls() -> None:
    class Owner:
        def double(self, value: int) -> int:
            return 2 * value

    wrap(Owner, "double", lambda double, self, value: double(self, value) + 1)
    assert Owner().double(3) == 7
    assert patching.reached["Owner.double"] == 1


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("x = 1", "assigns no MUTANT"),
        ("import no_such_module", "cannot be imported: ModuleNotFoundError"),
        ("from harness.mutants import Mutant\nMUTANT = Mutant(kind='ODD')", "cannot be imported"),
    ],
)
def test_a_file_that_declares_no_mutant_is_a_usage_error(tmp_path: Path, text: str, rule: str) -> None:
    path = tmp_path / "odd.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=rule):
        load_mutant(path)


def test_an_unknown_kind_and_a_mutant_that_nothing_must_see_are_refused() -> None:
    with pytest.raises(ValueError, match="'ODD' is not in the catalogue"):
        mutant(kind="ODD")
    with pytest.raises(ValueError, match="caught_by is empty"):
        mutant(caught_by=())


def test_mutants_are_listed_in_the_catalogue_s_order_and_chosen_by_kind_or_file() -> None:
    found = find_mutants(CHECKOUT / "suites/mutants")
    order = [KINDS.index(each.kind) for each in found.values()]
    assert order == sorted(order)
    chosen = choose(CHECKOUT / "suites/mutants", Choice(["frozen"]))
    assert {each.kind for each in chosen.values()} == {"FROZEN"}
    with pytest.raises(UsageError, match="no mutant fits nothing_like_it; there are"):
        choose(CHECKOUT / "suites/mutants", Choice(["nothing_like_it"]))


def test_a_child_runs_the_public_command_on_one_narrow_cell(tmp_path: Path) -> None:
    words = command(mutant(level=3, mode="NONE"), Ground(tmp_path / "p.toml", tmp_path), ["planted"], tmp_path)
    assert words[1:4] == ["-m", "harness", "signoff"]
    assert "--level 3 --mode NONE --workload decode --dtype float32" in " ".join(words)


PLANTED = """
from harness.mutants import Mutant, swap
MUTANT = Mutant(kind="HARNESS", variant="a name that is gone", changes="-", control_is="-", caught_by=("G1",), says="-",
                plant=lambda: swap(Mutant, "no_such_name", 1), control=lambda: None)
"""


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[], Outcome]:
    path = tmp_path / "gone.py"
    path.write_text(PLANTED)
    ground = Ground(CHECKOUT / "suites/mutants/mutants.toml", tmp_path / "work", "cpu")
    return lambda: run_mutant(path, load_mutant(path), ground)


def test_a_real_child_whose_patch_found_nothing_is_reported_as_broken(broken: Callable[[], Outcome]) -> None:
    outcome = broken()
    assert outcome.state is State.BROKEN
    assert outcome.finding is not None
    assert "Mutant has no 'no_such_name'" in outcome.finding.message


@pytest.mark.parametrize(
    ("words", "message"),
    [(["no_such"], "no mutant fits no_such"), (["--folder", "nowhere"], "no mutant below nowhere")],
)
def test_the_command_refuses_what_it_cannot_plant(words: list[str], message: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "mutants", *words, "--results", str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == USAGE
    assert re.search(message, done.stderr)
