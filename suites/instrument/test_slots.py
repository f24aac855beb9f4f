"""Seven of eight GPUs idle, a worker on the far socket, two sign-offs timing each other on one GPU: all three happened,
and none of them showed in a record. Node trees here are made of files; the GPUs of the executor's tests are CPUs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.errors import IncompleteError, UnfitError
from harness.execution import locks
from harness.execution.local import LocalExecutor
from harness.execution.locks import any_of, held, lock_folder, lock_of
from harness.execution.slots import Slot, bind, bound_to, parse_cpus, slots_of
from harness.host import pci_address
from harness.plan import make_plan
from harness.plugins import find_engine
from harness.records import LaneRecord, Phase
from suites.instrument.fake_host import CUDA_TORCH, H200, MI300X, ROCM_TORCH, make_host
from suites.instrument.spine import CHECKOUT, HERE, fake_environment, fake_profile

ADDRESSES = ("0000:1b:00.0", "0000:9d:00.0")
TWO_H200 = replace(CUDA_TORCH, gpus=(H200, H200), pci=ADDRESSES)
TWO_MI300X = replace(ROCM_TORCH, gpus=(MI300X, MI300X), pci=ADDRESSES)
TREE = {
    "/sys/bus/pci/devices/0000:1b:00.0/numa_node": "0\n",
    "/sys/bus/pci/devices/0000:9d:00.0/numa_node": "1\n",
    "/sys/devices/system/node/node0/cpulist": "0-1,8\n",
    "/sys/devices/system/node/node1/cpulist": "2-3\n",
}


def test_each_gpu_is_a_slot_with_the_cpus_of_its_own_node(tmp_path: Path) -> None:
    first, second = slots_of("cuda", make_host(tmp_path, TREE, TWO_H200))
    assert (first.name, first.node, first.cpus) == ("0000:1b:00.0", 0, (0, 1, 8))
    assert (second.name, second.node, second.cpus) == ("0000:9d:00.0", 1, (2, 3))
    assert second.variables == (("CUDA_VISIBLE_DEVICES", "1"),)
    assert (second.device, second.as_seen_here) == ("cuda", "cuda:1")


def test_a_worker_is_shown_its_gpu_within_those_that_were_shown_to_the_command(tmp_path: Path) -> None:
    host = make_host(tmp_path, TREE, TWO_MI300X, environ={"CUDA_VISIBLE_DEVICES": "5, 3"})
    assert [slot.variables for slot in slots_of("cuda", host)] == [
        (("HIP_VISIBLE_DEVICES", "5"),),
        (("HIP_VISIBLE_DEVICES", "3"),),
    ]


def test_the_gpu_that_was_asked_for_is_the_only_slot(tmp_path: Path) -> None:
    (slot,) = slots_of("cuda:1", make_host(tmp_path, TREE, TWO_H200))
    assert slot.name == "0000:9d:00.0"
    assert slots_of("cpu", make_host(tmp_path)) == [Slot("cpu", "cpu")]


def test_a_gpu_whose_address_or_node_nobody_knows_is_served_unbound(tmp_path: Path) -> None:
    nameless = replace(CUDA_TORCH, gpus=(H200, H200), pci=("", ""))
    assert [(slot.name, slot.node, slot.cpus) for slot in slots_of("cuda", make_host(tmp_path, TREE, nameless))] == [
        ("cuda:0", None, ()),
        ("cuda:1", None, ()),
    ]
    flat = make_host(tmp_path, {"/sys/bus/pci/devices/0000:1b:00.0/numa_node": "-1\n"}, TWO_H200)
    assert slots_of("cuda", flat)[0].node is None


@pytest.mark.parametrize(
    ("said", "address"),
    [("00000000:1B:00.0", "0000:1b:00.0"), ("1b:00.0", "0000:1b:00.0"), ("0001:c1:00.0", "0001:c1:00.0"), ("?", "")],
)
def test_one_gpu_has_one_name_whoever_says_it(said: str, address: str) -> None:
    assert pci_address(said) == address


def test_a_list_of_cpus_is_read_as_the_kernel_writes_it() -> None:
    assert parse_cpus("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpus("unknown") == parse_cpus("") == parse_cpus("3-") == ()


def test_a_process_is_kept_on_the_slots_cpus_and_its_starter_gets_its_own_back() -> None:
    before = psutil.Process().cpu_affinity()
    mine = before[-1]
    with bound_to(Slot("x", "cuda", cpus=(mine, 4096))):
        child = subprocess.run(
            [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"], capture_output=True, text=True
        )
        assert json.loads(child.stdout) == [mine]
    assert psutil.Process().cpu_affinity() == before


def test_cpus_that_a_process_may_not_use_are_no_reason_to_end_it() -> None:
    assert not bind(psutil.Process().pid, (4096,))
    assert not bind(2**22 + 1, (0,))  # no such process


# Locks --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(locks, "WAIT_S", 0.02)
    return tmp_path


GPU, OTHER = Slot("0000:1b:00.0", "cuda"), Slot("0000:9d:00.0", "cuda", 1)


def test_a_gpu_that_another_process_holds_is_waited_for_and_said(folder: Path) -> None:
    script = (
        "import sys; from harness.execution.locks import lock_of; from harness.execution.slots import Slot\n"
        "lock = lock_of(Slot('0000:1b:00.0', 'cuda')); lock.acquire(); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", f"import tempfile; tempfile.gettempdir = lambda: {str(folder)!r}\n{script}"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=CHECKOUT)
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    said: list[str] = []
    threading.Timer(0.3, holder.stdin.close).start()
    with held(GPU, lambda: True, said.append) as mine:
        assert mine
        assert holder.wait(timeout=10) == 0
    assert said == ["GPU 0000:1b:00.0 is held by another run of the harness; waiting for it"]
    holder.stdout.close()


def test_a_gpu_that_is_wanted_no_more_is_waited_for_no_longer(folder: Path) -> None:
    wanted = iter([True, False])
    with lock_of(GPU), held(GPU, lambda: next(wanted), lambda text: None) as mine:
        assert not mine


def test_a_comparison_takes_the_gpu_that_is_free(folder: Path) -> None:
    with lock_of(GPU), any_of([GPU, OTHER], lambda text: None) as slot:
        assert slot is OTHER
    with any_of([GPU, OTHER], lambda text: None) as slot:
        assert slot is GPU


def test_a_lock_folder_that_others_can_write_is_refused(folder: Path) -> None:
    made = lock_folder()
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o777)
    with pytest.raises(UnfitError, match="is not a folder of this user alone"):
        lock_folder()


# The executor -------------------------------------------------------------------------------------------------------

FAKE_GPUS = [Slot("gpu-a", "cpu", 0, 0, (), (("FAKE_GPU", "a"),)), Slot("gpu-b", "cpu", 1, 1, (), (("FAKE_GPU", "b"),))]


class Silent:
    def phase(self, unit: str, phase: Phase) -> None: ...
    def recorded(self, record: LaneRecord) -> None: ...


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    for name, value in fake_environment({"level=1,mode=FULL": "segfault in capture"}, tmp_path / "journal").items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
def test_cells_are_spread_over_the_gpus_and_each_record_says_which_one_ran_it(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path, level="[0, 1, 2, 3]")
    plan, kept = make_plan(profile, "cpu", find_engine), list[LaneRecord]()
    executor = LocalExecutor(profile, "cpu", tmp_path / "logs", kept.append, Silent(), slots=FAKE_GPUS)
    executor.run(plan.units)
    assert sorted(f"{r.cell}#{r.lane}" for r in kept) == sorted(unit.id for unit in plan.units)
    assert executor.executed == len(plan.units) == 8
    assert {(record.slot, record.numa_node) for record in kept} == {("gpu-a", 0), ("gpu-b", 1)}
    assert [record.fate.value for record in kept].count("crashed") == 1


@pytest.mark.usefixtures("environment")
def test_a_full_disk_under_one_gpu_stops_the_others(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path, level="[0, 1, 2, 3]")
    plan = make_plan(profile, "cpu", find_engine)

    def full(record: LaneRecord) -> None:
        raise IncompleteError("records.jsonl cannot be written: No space left on device")

    executor = LocalExecutor(profile, "cpu", tmp_path / "logs", full, Silent(), slots=FAKE_GPUS)
    with pytest.raises(IncompleteError, match="No space left"):
        executor.run(plan.units)
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in alive if "harness.worker" in " ".join(child.cmdline())]
