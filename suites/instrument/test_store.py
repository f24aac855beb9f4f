"""What is recorded stays recorded: a kill in the middle of a write, a full disk, a second writer each lost a night."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from harness.errors import INCOMPLETE, USAGE, IncompleteError, UsageError
from harness.records import (
    SCHEMA_VERSION,
    CellVerdict,
    Fate,
    GateResult,
    LaneRecord,
    Phase,
    RunHeader,
    Status,
    Verdict,
)
from harness.store import (
    RECORDS,
    DamagedRun,
    RunLocked,
    RunStore,
    ensure_writable,
    list_runs,
    load_run,
    read_header,
    recorded_units,
)


def header(run: str = "20260101T000000Z-fake-0001") -> RunHeader:
    return RunHeader(
        run=run,
        profile="fake",
        profile_hash="0",
        command=["harness", "signoff"],
        started="2026-01-01T00:00:00+00:00",
        cells=["a", "b"],
        units=["a#serving", "b#serving"],
        declared={},
        device="cpu",
        fingerprint={"cpu": "x"},
        engine_revision={},
        harness_revision={},
    )


def lane(cell: str = "a") -> LaneRecord:
    gates = [GateResult(gate="G1", status=Status.PASS, message="as claimed: µ, \u2028 and \n", measured=1e-30)]
    return LaneRecord(
        cell=cell, axes={}, lane="serving", dtype="float32", fate=Fate.MEASURED, phase=Phase.REPLAY, gates=gates
    )


def verdict() -> Verdict:
    cells = [CellVerdict(cell="a", fate=Fate.MEASURED, reason="every gate passed")]
    counts = dict.fromkeys(("expected", "executed", "stored", "reported"), 1)
    return Verdict(
        run="r", exit_code=0, title="PASS", reasons=[], cells=cells, baseline="", finished="", seconds=1.0, **counts
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.create(tmp_path / "runs", header()) as opened:
        yield opened


def test_what_was_appended_is_what_is_read(store: RunStore) -> None:
    for line in (lane("a"), lane("b"), verdict()):
        store.append(line)
    run = load_run(store.folder)
    assert run.header == header()
    assert run.lanes == [lane("a"), lane("b")]
    assert run.verdict == verdict()
    assert run.damaged_lines == 0
    assert recorded_units(run) == {"a#serving", "b#serving"}
    assert load_run(store.folder / RECORDS) == run


def test_a_record_is_on_disk_before_append_returns(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fsync

    def counting(fd: int) -> None:
        synced.append(fd)
        sync(fd)

    monkeypatch.setattr(os, "fsync", counting)
    store.append(lane())
    assert len(synced) == 1
    assert load_run(store.folder).lanes == [lane()]


@pytest.mark.parametrize("kept_bytes", [1, 40, -1])
def test_a_line_that_a_kill_cut_short_is_counted_and_the_rest_is_read(store: RunStore, kept_bytes: int) -> None:
    store.append(lane("a"))
    whole = (store.folder / RECORDS).read_bytes()
    store.append(lane("b"))
    cut = (store.folder / RECORDS).read_bytes()[len(whole) : kept_bytes if kept_bytes < 0 else len(whole) + kept_bytes]
    (store.folder / RECORDS).write_bytes(whole + cut)
    run = load_run(store.folder)
    assert run.damaged_lines == 1
    assert recorded_units(run) == {"a#serving"}


def test_reopening_cuts_the_half_line_off_before_anything_is_appended(store: RunStore) -> None:
    store.append(lane("a"))
    store.close()
    with (store.folder / RECORDS).open("ab") as file:
        file.write(b'{"type":"lane","cell":"b"')
    reopened, run = RunStore.reopen(store.folder)
    with reopened:
        assert run.damaged_lines == 1
        reopened.append(lane("b"))
    after = load_run(store.folder)
    assert after.damaged_lines == 0
    assert recorded_units(after) == {"a#serving", "b#serving"}


def test_a_damaged_line_in_the_middle_costs_only_itself(store: RunStore) -> None:
    store.append(lane("a"))
    with (store.folder / RECORDS).open("ab") as file:
        file.write(b'{"type":"lane","fate":"splendid"}\n\x00\x00\x00\n')
    store.append(lane("b"))
    run = load_run(store.folder)
    assert run.damaged_lines == 2
    assert recorded_units(run) == {"a#serving", "b#serving"}


def test_a_run_without_a_readable_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_bytes(msgspec.json.encode(lane()) + b"\n")
    with pytest.raises(DamagedRun, match="no readable header line"):
        load_run(tmp_path)
    with pytest.raises(DamagedRun, match="the first line is no header"):
        read_header(tmp_path)


def test_a_run_of_a_newer_schema_is_refused_rather_than_misread(tmp_path: Path) -> None:
    newer = msgspec.structs.replace(header(), schema=SCHEMA_VERSION + 1)
    with RunStore.create(tmp_path, newer) as store, pytest.raises(UsageError, match="is newer than this harness reads"):
        load_run(store.folder)


def test_a_field_that_a_newer_harness_added_does_not_hide_the_record(store: RunStore) -> None:
    line = msgspec.to_builtins(lane("b")) | {"added_next_year": 1}
    with (store.folder / RECORDS).open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
    assert load_run(store.folder).lanes == [lane("b")]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run at .*nowhere"):
        load_run(tmp_path / "nowhere")


def test_two_writers_cannot_hold_one_run(store: RunStore) -> None:
    with pytest.raises(RunLocked, match="is being written by another process"):
        RunStore.reopen(store.folder)
    store.close()
    reopened, _ = RunStore.reopen(store.folder)
    reopened.close()


def test_a_disk_that_is_full_keeps_what_was_recorded_and_says_how_to_go_on(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(lane("a"))
    write = os.write

    def half_then_full(fd: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, bytes(data)[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_then_full)
        with pytest.raises(IncompleteError, match=r"No space left on device.*give the same command again") as error:
            store.append(lane("b"))
    assert error.value.exit_code == INCOMPLETE
    assert load_run(store.folder).damaged_lines == 0
    store.append(lane("b"))
    assert recorded_units(load_run(store.folder)) == {"a#serving", "b#serving"}


def test_a_results_folder_that_cannot_be_written_is_refused_before_work(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where the folder should be")
    with pytest.raises(UsageError, match="cannot be written: Not a directory; name another with") as error:
        ensure_writable(tmp_path / "results" / "runs")
    assert error.value.exit_code == USAGE
    with pytest.raises(UsageError, match="cannot be written"):
        RunStore.create(tmp_path / "results" / "runs", header())


def test_a_run_of_the_same_name_is_never_written_over(store: RunStore) -> None:
    with pytest.raises(UsageError, match="cannot be written: File exists"):
        RunStore.create(store.folder.parent, header())


def test_runs_are_listed_newest_first_and_only_if_they_hold_something(tmp_path: Path) -> None:
    names = ["20260101T000000Z-fake-0001", "20260301T000000Z-fake-0002", "20260201T000000Z-fake-0003"]
    for name in names:
        RunStore.create(tmp_path, header(name)).close()
    (tmp_path / "20270101T000000Z-empty-0004").mkdir()
    (tmp_path / "20270101T000000Z-empty-0005").mkdir()
    (tmp_path / "20270101T000000Z-empty-0005" / RECORDS).touch()
    assert [folder.name for folder in list_runs(tmp_path)] == [names[1], names[2], names[0]]
    assert list_runs(tmp_path / "none") == []
