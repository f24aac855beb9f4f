"""Where a worker may run: one slot for each GPU of the node, with the GPU's own NUMA node, or one for the CPU.

Eight GPUs stood idle while one served a matrix of a thousand launches; and a worker on the far socket launched its
kernels a third slower, which looked like a regression of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from harness.gpus import list_gpus
from harness.host import NONE, UNKNOWN, Host, pci_address
from harness.plan import kind_of


@dataclass(frozen=True)
class Slot:
    """One place for one worker at a time. `device` is what the worker is told; `variables` show it that GPU alone."""

    name: str  # "cpu" or the GPU's PCI address; for a GPU whose address nobody knows, "cuda:<index>"
    device: str
    index: int = 0
    node: int | None = None  # the GPU's NUMA node, None where nobody knows it
    cpus: tuple[int, ...] = ()  # of that node; empty leaves the worker where the system puts it
    variables: tuple[tuple[str, str], ...] = field(default=())

    @property
    def is_gpu(self) -> bool:
        return kind_of(self.device) == "cuda"

    @property
    def as_seen_here(self) -> str:
        """The device by this process's own count, for a worker that is shown every GPU."""
        return f"{self.device}:{self.index}" if self.is_gpu else self.device


def slots_of(device: str, host: Host | None = None) -> list[Slot]:
    """The CPU, the one GPU that `device` names (`cuda:1`), or every GPU that torch sees (`cuda`)."""
    if kind_of(device) != "cuda":
        return [Slot(device, device)]
    host = host or Host()
    torch = host.torch()
    wanted = int(device.partition(":")[2]) if ":" in device else None
    addresses = _addresses(host)
    alone = len(torch.gpus) <= 1
    variable, shown = _visible(host, amd=torch.hip not in (UNKNOWN, NONE))
    slots = []
    for index in range(max(1, len(torch.gpus))) if wanted is None else [wanted]:
        pci = addresses[index] if index < len(addresses) else ""
        node = _node_of(host, pci)
        entry = shown[index] if index < len(shown) else str(index)
        pinned = () if alone else ((variable, entry),)
        slots.append(Slot(pci or f"cuda:{index}", "cuda", index, node, _cpus_of(host, node), pinned))
    return slots


@contextmanager
def bound_to(slot: Slot) -> Iterator[None]:
    """Run this thread, and what it starts meanwhile, on the slot's CPUs; without any, nothing changes."""
    process = psutil.Process()
    if not (slot.cpus and hasattr(process, "cpu_affinity")):
        yield
        return
    before = process.cpu_affinity()
    bind(process.pid, slot.cpus)
    try:
        yield
    finally:
        process.cpu_affinity(before)


def bind(pid: int, cpus: tuple[int, ...]) -> bool:
    """Keep a process on those of `cpus` that it may use; False where that leaves none or the system cannot do it."""
    try:
        process = psutil.Process(pid)
        allowed = sorted({*process.cpu_affinity()} & {*cpus})
        if allowed:
            process.cpu_affinity(allowed)
        return bool(allowed)
    except (psutil.Error, AttributeError, OSError, ValueError):
        return False


def parse_cpus(text: str) -> tuple[int, ...]:
    """`0-3,8` as (0, 1, 2, 3, 8); nothing of a text that is no list of CPUs."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return ()
    ranges = [part.partition("-") for part in text.split(",")]
    return tuple(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def _addresses(host: Host) -> list[str]:
    """Of the GPUs in torch's order. Telemetry lists all of a node: it only helps where it lists as many as torch."""
    torch = host.torch()
    if len(torch.pci) == len(torch.gpus) and all(torch.pci):
        return [pci_address(pci) for pci in torch.pci]
    listed = [pci_address(str(gpu["pci"])) for gpu in list_gpus(host)]
    return listed if len(listed) == len(torch.gpus) else []


def _visible(host: Host, amd: bool) -> tuple[str, list[str]]:
    """The variable that chooses among GPUs, and its present entries: an index counts within them."""
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if amd else ("CUDA_VISIBLE_DEVICES",)
    said = next((host.environ[name] for name in names if host.environ.get(name)), "")
    return names[0], [entry.strip() for entry in said.split(",") if entry.strip()]


def _node_of(host: Host, pci: str) -> int | None:
    said = host.read(f"/sys/bus/pci/devices/{pci}/numa_node") if pci else UNKNOWN
    return int(said) if said.isdigit() else None  # the kernel says -1 where the firmware does not


def _cpus_of(host: Host, node: int | None) -> tuple[int, ...]:
    return () if node is None else parse_cpus(host.read(f"/sys/devices/system/node/node{node}/cpulist"))
