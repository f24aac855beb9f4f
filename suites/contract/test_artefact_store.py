"""What a cache does with artefacts that are missing, cut, changed or someone else's.

Upstream wrote in place, so that a start that was killed left half an artefact, and a changed one was loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom_impl.compilation.artefact_store import (
    MANIFEST,
    ArtefactMiss,
    locked,
    private_dir,
    publish,
    verify,
    write_atomically,
)


def fill(text: str) -> Callable[[Path], None]:
    def write(content: Path) -> None:
        (content / "fxgraph").mkdir(parents=True)
        (content / "fxgraph" / "code.py").write_text(text)

    return write


def cut(path: Path) -> None:
    file = path / "fxgraph" / "code.py"
    file.write_bytes(file.read_bytes()[:3])


def flip(path: Path) -> None:
    file = path / "fxgraph" / "code.py"
    content = bytearray(file.read_bytes())
    content[2] ^= 1
    file.write_bytes(content)


def escape(path: Path) -> None:
    outside = path.parent / "outside"
    outside.write_text("x")
    manifest = path / MANIFEST
    manifest.write_text(manifest.read_text().replace("fxgraph/code.py", "../outside"))


DAMAGE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "the directory is gone": ("missing", lambda path: path.rename(path.parent / "moved")),
    "a file is cut": ("corrupt", cut),
    "a bit is flipped": ("corrupt", flip),
    "a file is gone": ("corrupt", lambda path: (path / "fxgraph" / "code.py").unlink()),
    "the manifest is gone": ("corrupt", lambda path: (path / MANIFEST).unlink()),
    "the manifest is cut": ("corrupt", lambda path: (path / MANIFEST).write_text('{"files": {')),
    "the manifest is a list": ("corrupt", lambda path: (path / MANIFEST).write_text("[]")),
    "the manifest names no files": (
        "corrupt",
        lambda path: (path / MANIFEST).write_text('{"format": 1, "owner": "me", "files": {}}'),
    ),
    "the manifest points outside": ("corrupt", escape),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_artefact_is_a_miss_with_its_reason(damage: str, tmp_path: Path) -> None:
    path = publish(tmp_path, "key", "me", fill("compiled"))
    verify(path, "me")
    reason, do = DAMAGE[damage]
    do(path)
    with pytest.raises(ArtefactMiss) as caught:
        verify(path, "me")
    assert caught.value.reason == reason


def test_an_artefact_of_another_build_is_foreign(tmp_path: Path) -> None:
    path = publish(tmp_path, "key", "torch 2.11", fill("compiled"))
    with pytest.raises(ArtefactMiss) as caught:
        verify(path, "torch 2.13")
    assert caught.value.reason == "foreign"


def test_files_that_a_load_adds_are_not_judged(tmp_path: Path) -> None:
    path = publish(tmp_path, "key", "me", fill("compiled"))
    (path / "locks").mkdir()
    (path / "locks" / "x.lock").touch()
    verify(path, "me")


def test_a_write_that_fails_leaves_nothing_behind_and_keeps_what_was_there(tmp_path: Path) -> None:
    path = publish(tmp_path, "key", "me", fill("old"))

    def fail(content: Path) -> None:
        content.mkdir()
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        publish(tmp_path, "key", "me", fail)
    verify(path, "me")
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_publishing_again_replaces_the_whole(tmp_path: Path) -> None:
    publish(tmp_path, "key", "me", fill("old"))
    path = publish(tmp_path, "key", "me", fill("new"))
    verify(path, "me")
    assert (path / "fxgraph" / "code.py").read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_a_text_file_is_whole_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "table.py"
    write_atomically(target, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed here")))
    with pytest.raises(OSError, match="killed here"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.py"]


def test_the_cache_directory_is_private(tmp_path: Path) -> None:
    made = private_dir(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(PermissionError, match="may be written by others"):
        private_dir(shared)


def test_a_lock_that_cannot_be_had_is_told_and_not_waited_for_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atom_impl.compilation.artefact_store.LOCK_TIMEOUT_S", 0.05)
    with locked(tmp_path, "piece") as first, locked(tmp_path, "piece") as second:
        assert (first, second) == (True, False)
    with locked(tmp_path, "piece") as again:
        assert again is True
