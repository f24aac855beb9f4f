"""The kept table of planted faults: a run cut short must be resumed, and a page must not outlive what it tells of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from harness.errors import UsageError
from harness.mutants import Mutant, command
from harness.mutants.command import Choice, MutantsRun, choose
from harness.mutants.findings import Finding
from harness.mutants.page import page
from harness.mutants.record import RECORD, Record, Row, kept_records, merged, read_record, row_of, rows_in, write_record
from harness.mutants.runner import CHECKOUT, Ground, Outcome, State
from harness.report.planted import planted_faults

FILE = """
from harness.mutants import Mutant
MUTANT = Mutant(kind="STALE", variant="{name}", changes="-", control_is="-.", caught_by=("G1",), says="A row.",
                plant=lambda: None, control=lambda: None{more})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three mutants: one for any device, one of the GPU's subset, one that a GPU cannot show."""
    planted = tmp_path / "mutants" / "planted"
    planted.mkdir(parents=True)
    (tmp_path / "mutants" / command.PROFILE).write_text("name = 'none'\n")
    for name, more in (("one", ""), ("two", ", gpu=True"), ("three", ", cpu_only='no graph'")):
        (planted / f"{name}.py").write_text(FILE.format(name=name, more=more))
    return tmp_path / "mutants"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The mutants that were run, each caught at once."""
    names: list[str] = []

    def run_mutant(path: Path, mutant: Mutant, ground: Ground) -> Outcome:
        names.append(path.stem)
        return Outcome(mutant, State.CAUGHT, Finding("G1", "row 0"), (), None, 1.0, {"G1": True, "G2": False})

    monkeypatch.setattr(command, "run_mutant", run_mutant)
    monkeypatch.setattr("harness.mutants.record.machine.revision", lambda path: {"commit": "c0ffee"})
    return names


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Callable[[], MutantsRun]:
    def start() -> MutantsRun:
        ground = command.ground_of(folder, tmp_path / "results", "cpu")
        return MutantsRun(choose(folder, Choice()), ground, 1, lambda text: None)

    return start


def row(file: str, **changes: object) -> Row:
    words = {"file": file, "kind": "STALE", "variant": file, "state": State.CAUGHT, "gate": "G1", "message": "row 0"}
    return Row(**{**words, **changes})  # type: ignore[arg-type]


def record(rows: list[Row], device: str = "cpu", machine: str = "2 cores") -> Record:
    return Record(
        finished="2026-01-02T03:04:05+00:00",
        command=["harness", "mutants"],
        device=device,
        machine=machine,
        minutes=9.0,
        jobs=2,
        revision={"commit": "c0ffee"},
        software={"torch": "2.13"},
        rows=rows,
    )


def test_what_an_earlier_run_of_the_same_code_knows_is_not_run_again(
    run: Callable[[], MutantsRun], ran: list[str], folder: Path
) -> None:
    first = run()
    first.run()
    assert sorted(ran) == ["one", "three", "two"]
    path = folder / "planted" / "two.py"
    path.write_text(path.read_text() + "# another fault\n")
    second = run()
    second.resume()
    second.run()
    assert ran[3:] == ["two"]
    assert [outcome.mutant.variant for outcome in second.run()] == ["one", "three", "two"]


def test_a_line_cut_short_by_a_kill_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    file.write_bytes(b'{"file": "one", "kind": "STALE", "variant": "v", "state": "caught"}\n{"file": "tw')
    assert [found.file for found in rows_in(file)] == ["one"]


def test_the_gpu_s_subset_and_what_a_gpu_cannot_show_are_chosen_by_device(folder: Path) -> None:
    assert {path.stem for path in choose(folder, Choice(gpu=True))} == {"two"}
    assert {path.stem for path in choose(folder, Choice(device="cuda"))} == {"one", "two"}
    assert {path.stem for path in choose(folder, Choice())} == {"one", "two", "three"}


def test_a_kept_record_is_merged_row_by_row_and_forgets_mutants_that_are_gone(folder: Path, tmp_path: Path) -> None:
    results, made = tmp_path / "results", tmp_path / "made.json"
    kept = results / "records" / "cpu" / RECORD
    write_record(kept, record([row("one", state=State.SURVIVED), row("three"), row("gone")]))
    write_record(made, record([row("one")]))
    target, written = command.keep(made, results, folder)
    assert target == kept
    assert {found.file: found.state for found in read_record(kept).rows} == dict.fromkeys(
        ("one", "three"), State.CAUGHT
    )
    assert "| STALE | two | not run |" in written.read_text()


def test_the_record_of_a_gpu_goes_to_its_own_folder_and_column(folder: Path, tmp_path: Path) -> None:
    results, made = tmp_path / "results", tmp_path / "made.json"
    write_record(made, record([row("two", message="on a GPU")], "cuda", "NVIDIA H200, 16 cores"))
    target, written = command.keep(made, results, folder)
    assert target == results / "records" / "nvidia-h200" / RECORD
    text = written.read_text()
    assert "| STALE | two | not run |  |  |  | caught | G1 | 0 | silent |" in text
    assert "| STALE | three | not run |  |  |  | CPU only: no graph |" in text
    assert "GPU says: on a GPU" in text
    assert "**CPU**: not run" in text


def test_the_page_names_gates_that_nothing_failed_and_kinds_that_are_not_yet(folder: Path) -> None:
    rows = [row("one", gates={"G1": True, "G4": False})]
    text = page(choose(folder, Choice()), [record(rows)])
    assert "| G1 | 1 | one |" in text
    assert "Judged and failed by no mutant: G4." in text
    assert "1 of 18 kinds caught; 1 of 1 planted faults caught, 1 of 1 controls silent; 2 of 3 not run." in text
    assert "- RANKS: " in text


def test_the_latest_record_of_each_device_counts(tmp_path: Path) -> None:
    write_record(tmp_path / "records/cpu" / RECORD, record([row("one")]))
    newer = record([row("two")])
    write_record(tmp_path / "records/other" / RECORD, msgspec.structs.replace(newer, finished="2027-01-01"))
    assert [found.rows[0].file for found in kept_records(tmp_path)] == ["two"]


def test_a_record_of_a_newer_schema_or_of_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / RECORD
    file.write_text("{}")
    with pytest.raises(UsageError, match="is no record of `harness mutants`"):
        read_record(file)
    write_record(file, msgspec.structs.replace(record([]), schema=99))
    with pytest.raises(UsageError, match="schema 99 is newer"):
        read_record(file)


def test_rows_that_are_run_again_replace_the_old_ones() -> None:
    assert [found.gate for found in merged([row("one", gate="G2"), row("two")], [row("one")])] == ["G1", "G1"]


def test_a_report_shows_the_kept_table_and_says_so_where_there_is_none(tmp_path: Path) -> None:
    assert "No table of planted faults is kept" in planted_faults(tmp_path).notes[0]
    write_record(tmp_path / "records/cpu" / RECORD, record([row("one")]))
    found = planted_faults(tmp_path)
    assert (found.faults[0].cpu, found.faults[0].gpu) == ("caught by G1", "not run")
    assert "1 of 1 planted faults of 1 kinds caught" in found.notes[0]
    (tmp_path / "records/cpu" / RECORD).write_text("{")
    assert "cannot be read" in planted_faults(tmp_path).notes[0]


def test_a_row_names_files_by_their_place_in_the_checkout(tmp_path: Path) -> None:
    """A crash's message held the folder that the table happened to be made in."""
    said = f'crashed at "{CHECKOUT}/suites/mutants/planted/one.py", line 3'
    mutant = Mutant(
        kind="STALE",
        variant="one",
        changes="-",
        control_is="-.",
        caught_by=("G1",),
        says="A row.",
        plant=lambda: None,
        control=lambda: None,
    )
    outcome = Outcome(mutant, State.ALARM, Finding("crashed in capture", said), (), Finding("G1", said), 1.0)
    kept = row_of(tmp_path / "one.py", outcome, "key")
    assert kept.message == 'crashed at "suites/mutants/planted/one.py", line 3'
    assert kept.control == f"G1: {kept.message}"
