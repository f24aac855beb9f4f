"""The command as its users give it: one clear message, the right exit code, and nothing recorded is ever lost.

`asv run` exits 0 when nothing was saved, and a Ctrl-C loses its whole night; scripts that trust it go on with nothing.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

from harness import errors
from harness.execution.resume import resume, resume_key
from harness.progress import progress
from harness.records import Fate, Phase, RunHeader
from harness.store import RECORDS, RunStore, list_runs, load_run, recorded_units
from suites.instrument.spine import CHECKOUT, fake_environment, harness, start, write_profile
from suites.instrument.test_store import header, lane, verdict

PATIENCE_S = 90.0


def only_run(folder: Path) -> Path:
    (found,) = list_runs(folder / "results" / "runs")
    return found


def opened(journal: Path) -> list[str]:
    return journal.read_text().split() if journal.exists() else []


def wait_for_units(journal: Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(opened(journal)) < count:
        assert time.monotonic() < deadline, f"only {opened(journal)} were opened"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str, str]:
    """One sign-off with a wrong cell in it: its folder, exit code, stdout and stderr."""
    folder = tmp_path_factory.mktemp("signed")
    write_profile(folder)
    env = fake_environment({"level=3,mode=FULL": "wrong"})
    return folder, *harness("signoff", "--profile", "fake.toml", "--device", "cpu", cwd=folder, env=env)


def test_a_wrong_cell_ends_a_signoff_with_exit_code_1(signed: tuple[Path, int, str, str]) -> None:
    _, code, out, err = signed
    assert code == errors.FAILED, err
    assert "FAIL: 1 of 4 cells" in out
    assert err == ""


def test_a_signoff_shows_plain_lines_where_there_is_no_terminal(signed: tuple[Path, int, str, str]) -> None:
    _, _, out, _ = signed
    assert "run 2" in out
    assert "4 units of 4 cells on cpu" in out
    lines = [line for line in out.splitlines() if line.startswith("[  ")]
    assert [line.split("]")[0] for line in lines] == [f"[  {n}/4" for n in range(1, 5)]
    assert sum("measured" in line for line in lines) == 3
    assert "wrong     engine=fake,model=fake-model,level=3,mode=FULL,ladder=1-2#serving" in lines[3]
    assert "G3.rows of the fake" in lines[3]
    assert "\x1b" not in out


def test_a_signoff_leaves_records_a_verdict_and_a_page(signed: tuple[Path, int, str, str]) -> None:
    folder, _, out, _ = signed
    run = load_run(only_run(folder))
    assert run.header.command[:2] == ["harness", "signoff"]
    assert run.header.device == "cpu"
    assert run.header.fingerprint["software"]["python"]
    assert len(run.header.resume_key) == 16
    assert run.verdict is not None
    assert run.verdict.exit_code == errors.FAILED
    assert run.verdict.expected == run.verdict.executed == run.verdict.stored == run.verdict.reported == 4
    assert {cell.fate for cell in run.verdict.cells} == {Fate.MEASURED, Fate.WRONG}
    page = only_run(folder) / "report.html"
    assert f"report: results/runs/{run.header.run}/report.html" in out
    assert "FAIL: 1 of 4 cells" in page.read_text()


def test_a_verdict_is_explained_from_what_is_stored(signed: tuple[Path, int, str, str]) -> None:
    folder, *_ = signed
    code, out, err = harness("explain", "level=3,mode=FULL", cwd=folder, env=fake_environment())
    assert code == errors.PASS, err
    assert "G3.rows" in out
    code, _, err = harness("explain", "level=3", "--run", only_run(folder).name, cwd=folder, env=fake_environment())
    assert code == errors.USAGE
    assert "'level=3' fits 2 cells; name one of\n  engine=fake,model=fake-model,level=3,ladder=1-2\n" in err


def test_a_finished_run_is_not_resumed_but_measured_anew(signed: tuple[Path, int, str, str]) -> None:
    folder, *_ = signed
    before = load_run(only_run(folder))
    assert resume(folder / "results" / "runs", before.header) == (None, [])


def test_a_run_records_without_judging(tmp_path: Path) -> None:
    write_profile(tmp_path)
    env = fake_environment({"mode=FULL": "wrong"})
    arguments = ("run", "--profile", "fake.toml", "--device", "cpu", "--level", "0", "--results", "elsewhere")
    code, out, err = harness(*arguments, cwd=tmp_path, env=env)
    assert code == errors.PASS, err
    (folder,) = list_runs(tmp_path / "elsewhere" / "runs")
    run = load_run(folder)
    assert run.verdict is None
    assert [lane.fate for lane in run.lanes] == [Fate.MEASURED, Fate.WRONG]
    assert run.header.filters == {"level": ["0"]}
    assert "2 of 2 units recorded in" in out
    assert "none judged: `harness signoff` judges" in out


def test_after_kill_9_what_was_recorded_is_kept_and_only_the_rest_is_executed(tmp_path: Path) -> None:
    # A copy of the sources: an edit between the two commands would, rightly, begin a new run.
    shutil.copytree(CHECKOUT / "harness", tmp_path / "copy" / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    write_profile(tmp_path, mode='["NONE"]', compile_s="60.0")
    journal = tmp_path / "journal"
    arguments = ("signoff", "--profile", "fake.toml", "--device", "cpu")
    slow = fake_environment({"level=3": "wait in capture"}, journal, checkout=tmp_path / "copy")
    process = start(*arguments, cwd=tmp_path, env=slow)
    wait_for_units(journal, 2)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert workers
    assert psutil.wait_procs(workers, timeout=PATIENCE_S)[1] == [], "no worker outlives the command"
    run = load_run(only_run(tmp_path))
    assert run.verdict is None
    assert recorded_units(run) == {run.header.units[0]}
    with (only_run(tmp_path) / RECORDS).open("ab") as file:
        file.write(b'{"type":"lane","cell":"engine=f')

    fast = fake_environment({}, journal, checkout=tmp_path / "copy")
    code, out, err = harness(*arguments, cwd=tmp_path, env=fast)
    assert code == errors.PASS, err
    assert f"resuming {run.header.run}: 1 of 2 units recorded" in out
    finished = load_run(only_run(tmp_path))
    assert finished.verdict is not None
    assert finished.verdict.executed == 2
    assert finished.damaged_lines == 0
    assert len(opened(journal)) == 3, "the first, the one that was killed, and that one again"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_in_one_message_and_exit_code_3_with_the_records_kept(
    tmp_path: Path, number: signal.Signals
) -> None:
    write_profile(tmp_path, compile_s="60.0")
    journal = tmp_path / "journal"
    env = fake_environment({"mode=FULL": "wait in capture"}, journal)
    process = start("signoff", "--profile", "fake.toml", "--device", "cpu", cwd=tmp_path, env=env)
    wait_for_units(journal, 2)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=PATIENCE_S)
    run = load_run(only_run(tmp_path))
    assert process.returncode == errors.INCOMPLETE
    assert f"interrupted: 1 of 4 units of {run.header.run} are recorded; the same command resumes it" in err
    assert "Traceback" not in err
    assert recorded_units(run) == {run.header.units[0]}
    assert run.verdict is None
    assert "incomplete" in (only_run(tmp_path) / "report.html").read_text().lower()


def test_cells_prints_what_will_be_done_and_where_every_size_runs(tmp_path: Path) -> None:
    write_profile(tmp_path)
    arguments = ("cells", "--profile", "fake.toml", "--device", "cpu", "--workload", "decode", "--workload", "prefill")
    code, out, err = harness(*arguments, cwd=tmp_path, env=fake_environment())
    assert code == errors.PASS, err
    assert "8 cells, 6 units to execute on cpu" in out
    assert "execute   engine=fake,model=fake-model,ladder=1-2 " in out
    assert "declared  engine=fake,model=fake-model,mode=FULL,workload=prefill,ladder=1-2" in out
    assert "prefill is eager under FULL" in out
    assert "bucket 2 (FULL)" in out
    assert "HOLE" not in out


def test_cells_names_a_hole_in_the_ladder(tmp_path: Path) -> None:
    write_profile(tmp_path)
    arguments = ("cells", "--profile", "fake.toml", "--device", "cpu", "--ladder", "1")
    code, out, err = harness(*arguments, cwd=tmp_path, env=fake_environment())
    assert code == errors.PASS, err
    assert "HOLE in engine=fake,model=fake-model,mode=FULL,ladder=1: requests 2: above every bucket" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--profile", "nope"), "unknown profile 'nope'; choose from"),
        (("--level", "7"), "unknown level 7; choose from 0, 1, 2, 3"),
        (("--level", "three"), "Invalid value for '--level'"),
        (("--mode", "PARTIAL"), "unknown mode 'PARTIAL'; choose from NONE, TR_HYBRID, FULL"),
        (("--ladder", "1,0"), "0 is not a size"),
        (("--ladder", "-1,2"), "-1 is not a size"),
        (("--ladder", "2,2"), "2 is named 2 times"),
        (("--ladder", "1,two"), "'two' is not a whole number"),
        (("--ladder", "1,9"), "9 can never be reached, since max_num_seqs is 2"),
        (("--engine", "nope"), "unknown engine 'nope'"),
        (("--model", "nope"), "unknown model 'nope'; the models are fake-model, damaged-model"),
        (("--device", "tpu"), "tpu"),
        (("--results", "fake.toml"), "cannot be written: "),
        (("--model", "damaged-model"), "weights.gguf has 12 bytes, expected 100: fetch it again"),
        (("--no-such-option",), "No such option"),
    ],
)
def test_what_cannot_be_used_ends_in_one_message_and_exit_code_2_before_any_work(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    write_profile(tmp_path)
    env = fake_environment({}, tmp_path / "journal")
    given = ("--profile", "fake.toml") if "--profile" not in arguments else ()
    device = ("--device", "cpu") if "--device" not in arguments else ()
    code, out, err = harness("signoff", *given, *device, *arguments, cwd=tmp_path, env=env)
    assert code == errors.USAGE, out + err
    assert message in err
    assert "Traceback" not in err
    assert not opened(tmp_path / "journal")
    assert not list_runs(tmp_path / "results" / "runs")


def test_explaining_without_a_run_says_how_to_make_one(tmp_path: Path) -> None:
    code, _, err = harness("explain", "anything", cwd=tmp_path, env=fake_environment())
    assert code == errors.USAGE
    assert "no run below results/runs; make one with `harness signoff`" in err


def test_a_machine_without_a_compiler_is_unfit_before_any_work(tmp_path: Path) -> None:
    write_profile(tmp_path)
    env = fake_environment({}, tmp_path / "journal") | {"PATH": str(tmp_path), "CXX": ""}
    code, out, err = harness("signoff", "--profile", "fake.toml", "--device", "cpu", cwd=tmp_path, env=env)
    assert code == errors.UNFIT, out + err
    assert "compiler" in err.lower()
    assert not opened(tmp_path / "journal")


def test_a_plan_changes_its_key_with_each_thing_that_may_not_be_mixed() -> None:
    facts = {
        "profile_hash": "p",
        "filters": {"level": ["3"]},
        "code": {"sources": "s"},
        "device": "cpu",
        "series": "machine",
    }
    others = {
        "profile_hash": "q",
        "filters": {},
        "code": {"sources": "t"},
        "device": "cuda",
        "series": "another machine",
    }
    key = resume_key(**facts)  # type: ignore[arg-type]
    keys = {resume_key(**{**facts, name: value}) for name, value in others.items()}  # type: ignore[arg-type]
    assert len(keys | {key}) == len(others) + 1
    assert resume_key(**facts) == key  # type: ignore[arg-type]


class TestResuming:
    """Which unfinished run is continued."""

    def begin(self, runs: Path, run: str, *, lines: int = 1, **changes: object) -> None:
        with RunStore.create(runs, self.wanted(run, **changes)) as store:
            for cell in ("a", "b")[:lines]:
                store.append(lane(cell))

    def wanted(self, run: str, **changes: object) -> RunHeader:
        return msgspec.structs.replace(header(run), **{"resume_key": "k", **changes})

    def resumed(self, runs: Path, **changes: object) -> str | None:
        found, _ = resume(runs, self.wanted("new", **changes))
        if found is None:
            return None
        found.store.close()
        return found.run.header.run

    def test_the_newest_one_of_the_same_key_is(self, tmp_path: Path) -> None:
        for run in ("1", "3", "2"):
            self.begin(tmp_path, run)
        self.begin(tmp_path, "4", resume_key="other")
        assert self.resumed(tmp_path) == "3"

    def test_one_with_a_verdict_is_not(self, tmp_path: Path) -> None:
        with RunStore.create(tmp_path, self.wanted("1")) as store:
            store.append(verdict())
        assert self.resumed(tmp_path) is None

    def test_one_of_another_command_is_not(self, tmp_path: Path) -> None:
        self.begin(tmp_path, "1", kind="run")
        assert self.resumed(tmp_path) is None
        assert self.resumed(tmp_path, kind="run") == "1"

    def test_a_complete_run_is_not_but_a_complete_signoff_still_needs_its_verdict(self, tmp_path: Path) -> None:
        self.begin(tmp_path, "1", kind="run", lines=2)
        self.begin(tmp_path, "2", lines=2)
        assert self.resumed(tmp_path, kind="run") is None
        assert self.resumed(tmp_path) == "2"

    def test_one_that_another_process_is_writing_is_passed_over_and_named(self, tmp_path: Path) -> None:
        self.begin(tmp_path, "1")
        with RunStore.create(tmp_path, self.wanted("2")):
            found, notes = resume(tmp_path, self.wanted("new"))
        assert found is not None
        found.store.close()
        assert found.run.header.run == "1"
        assert notes == ["run 2 is being written by another process; not resuming it"]

    def test_one_with_a_damaged_header_is_passed_over(self, tmp_path: Path) -> None:
        self.begin(tmp_path, "1")
        (tmp_path / "2").mkdir()
        (tmp_path / "2" / RECORDS).write_text('{"type":"run","sch')
        assert self.resumed(tmp_path) == "1"

    def test_nothing_is_without_a_key(self, tmp_path: Path) -> None:
        self.begin(tmp_path, "1", resume_key="")
        assert self.resumed(tmp_path, resume_key="") is None


def test_a_terminal_gets_a_bar_and_only_what_went_wrong_in_words() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    good, bad = (
        lane("good"),
        msgspec.structs.replace(lane("bad"), fate=Fate.HUNG, reason="replay took [too] long"),
    )
    with progress(console, total=3, done=1) as show:
        show.note("resuming")
        show.phase("good#serving", Phase.REPLAY)
        show.recorded(good)
        show.recorded(bad)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3/3" in written
    assert "good#serving replay" in written
    assert "hung      bad#serving  0.0 s: replay took [too] long" in written
    assert "measured" not in written
