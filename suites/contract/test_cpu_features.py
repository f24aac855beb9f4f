"""Inductor asked in every process what vector instructions work, a second of each start, and knew no more the next
time.

A probe that has worked may be remembered for the same CPU, compiler and torch; one that failed may not, since a
compiler that was killed once would leave the machine without vector code for good.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
from torch._inductor import cpu_vec_isa
from torch._inductor.cpu_vec_isa import VecISA, valid_vec_isa_list

from atom_impl.compilation import cpu_features
from atom_impl.compilation.cpu_features import FOLDER, probe_cpu_features


class Machine:
    """An Inductor that knows one instruction set, and counts how often it is tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root, self.works, self.tried = root, True, 0
        monkeypatch.setenv("ATOM_CACHE_ROOT", str(root))
        monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", [Probed()])
        monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["probed"])
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(VecISA, "check_build", lambda isa, code: self.check_build())

    def check_build(self) -> bool:
        self.tried += 1
        return self.works

    def new_process(self) -> bool:
        """Whether a process that starts now finds that the instruction set works."""
        valid_vec_isa_list.cache_clear()
        VecISA._VecISA__bool__impl.cache_clear()  # type: ignore[attr-defined]
        probe_cpu_features()
        return bool(valid_vec_isa_list())

    @property
    def files(self) -> list[Path]:
        return sorted((self.root / FOLDER).glob("*.json"))


class Probed(VecISA):
    _arch_flags = ""

    def __str__(self) -> str:
        return "probed"

    __hash__ = VecISA.__hash__


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path / "cache")


@pytest.fixture(autouse=True)
def _own_findings() -> object:
    yield
    valid_vec_isa_list.cache_clear()


def test_what_one_process_saw_work_the_next_does_not_try_again(machine: Machine) -> None:
    assert [machine.new_process() for _ in range(3)] == [True] * 3
    assert machine.tried == 1


def test_what_failed_is_tried_again(machine: Machine) -> None:
    machine.works = False
    assert not machine.new_process()
    machine.works = True
    assert machine.new_process()
    assert machine.tried == 2


def test_another_cpu_or_compiler_is_asked_itself(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.new_process()
    monkeypatch.setattr(cpu_features, "_flags", lambda: "avx sse")
    machine.new_process()
    monkeypatch.setattr(cpu_features, "compiler_version", lambda name: "another")
    machine.new_process()
    assert machine.tried == len(machine.files) == 3


@pytest.mark.parametrize("text", ["", "{", "7", '{"a": 1}', "[1, 2]"])
def test_a_finding_that_cannot_be_read_is_none(machine: Machine, text: str) -> None:
    machine.new_process()
    (file,) = machine.files
    good = file.read_text()
    file.write_text(text)
    assert machine.new_process()
    assert machine.tried == 2
    assert json.loads(file.read_text()) == json.loads(good)


def test_a_cache_that_cannot_be_written_costs_time_only(machine: Machine) -> None:
    machine.root.write_text("a file where the folder should be")
    assert machine.new_process()
    assert machine.new_process()
    assert machine.tried == 2


def test_inductors_own_probe_is_back_afterwards(machine: Machine) -> None:
    before = VecISA.check_build
    machine.new_process()
    assert VecISA.check_build == before
