"""Whether this machine can give the evidence, and which device it is given on.

Passing on the CPU of a GPU node is the silent fallback that this project exists to catch, so nothing here guesses: a
GPU that is there and cannot be used ends the run, unless the CPU was asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from harness.checkup import capacity, gpu, software
from harness.checkup.finding import Finding, Patient, Severity
from harness.errors import UnfitError, UsageError
from harness.host import Host

__all__ = ["CHECKS", "Finding", "Severity", "choose_device", "diagnose"]

#: In the order in which a person repairs a machine.
CHECKS: tuple[Callable[[Patient], Iterable[Finding]], ...] = (
    software.check_python,
    software.check_torch,
    gpu.check_visible,
    gpu.check_works,
    gpu.check_rocm,
    gpu.check_state,
    gpu.check_users,
    gpu.check_node,
    software.check_compiler,
    software.check_variables,
    software.check_aiter,
    software.check_asv,
    capacity.check_results,
    capacity.check_disk,
    capacity.check_memory,
    capacity.check_load,
)


def diagnose(device: str | None = None, *, results: Path = Path("results"), host: Host | None = None) -> list[Finding]:
    """Every finding, healthy ones included. `device` is what was asked for; only "cpu" excuses an unused GPU."""
    host = host or Host()
    patient = Patient(host, host.torch(), device, results)
    return [finding for check in CHECKS for finding in check(patient)]


def choose_device(requested: str | None, host: Host | None = None) -> str:
    """The device to run on: what was asked for, else the GPU if torch sees one, else the CPU.

    Raises `UnfitError` for a GPU that is asked for or shown and cannot be used, and `UsageError` for any other name.
    """
    if requested == "cpu":
        return "cpu"
    wanted = "cuda" if requested is None else requested
    kind, _, index = wanted.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise UsageError(f"device {requested!r}: no such device; choose cpu or cuda (an AMD GPU is cuda too)")
    host = host or Host()
    patient = Patient(host, host.torch(), requested, Path("results"))
    finding = next(iter(gpu.check_visible(patient)))
    if not finding.ok:
        raise UnfitError(f"{finding.message} {finding.way_out}")
    if index and int(index) >= len(patient.torch.gpus):
        raise UnfitError(f"device {requested!r}: torch sees {len(patient.torch.gpus)} of them; name one below that")
    return wanted if patient.torch.gpus else "cpu"
