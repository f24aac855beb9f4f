"""Room: memory, disk and a quiet machine.

A full disk cut a results file short and the run counted as green; a busy neighbour made an A/A pair differ by 13 %.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.checkup.finding import Finding, Patient, Severity, healthy
from harness.machine import cpu_quota

MEMORY_MIB = 6 << 10
DISK_MIB = 1 << 10
ROOMY_DISK_MIB = 5 << 10
BUSY_SHARE = 0.5


def check_memory(patient: Patient) -> Iterator[Finding]:
    """A warning: what is enough depends on the model, and a killed worker is a crashed cell and no silent pass."""
    sizes = patient.host.memory_mib()
    available, total = sizes["available"], sizes["total"]
    if not isinstance(available, int) or not isinstance(total, int):
        yield Finding("memory", False, "note", "How much memory is available cannot be read.")
    elif available < MEMORY_MIB:
        message = f"{available} of {total} MiB of memory are available; a sign-off wants 6144."
        yield Finding("memory", False, "warn", message, "Close other programs, or expect workers to be killed.")
    else:
        yield healthy("memory", f"{available} of {total} MiB of memory are available.")


def check_disk(patient: Patient) -> Iterator[Finding]:
    """Room where records are kept and where compilers write."""
    for purpose, folder in (("results", patient.results), ("temporary files", Path(tempfile.gettempdir()))):
        nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        free_mib = patient.host.free_bytes(nearest) >> 20
        if free_mib >= ROOMY_DISK_MIB:
            yield healthy("disk", f"{free_mib} MiB are free for {purpose}.")
            continue
        severity: Severity = "unfit" if free_mib < DISK_MIB else "warn"
        message = f"Only {free_mib} MiB are free for {purpose}; records and compiled code would be cut short."
        yield Finding("disk", False, severity, message, "Free some space: 5 GiB are comfortable, 1 GiB is the least.")


def check_results(patient: Patient) -> Iterator[Finding]:
    """Try to write: permissions do not tell of a read-only mount or a used-up quota."""
    folder = patient.results.absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=nearest) as trial:
            trial.write(b"\0" * 4096)
            trial.flush()
    except OSError as error:
        message = f"The results folder {patient.results} cannot be written: {error.strerror or error}."
        yield Finding("results", False, "unfit", message, "Make it writable, or name another folder with --results.")
    else:
        yield healthy("results", f"Results can be written to {patient.results}.")


def check_load(patient: Patient) -> Iterator[Finding]:
    """Others' work, and a container that may use fewer cores than it sees: each thread pool would be too wide."""
    first, cores = patient.host.read("/proc/loadavg").split()[0], patient.host.cores
    if first.replace(".", "", 1).isdigit() and float(first) > BUSY_SHARE * cores:
        message = f"The load is {first} on {cores} cores: other programs run, and timings will wander."
        yield Finding("load", False, "warn", message, "Wait for them to end; correctness does not suffer.")
    else:
        yield healthy("load", f"The load is {first} on {cores} cores.")
    quota = cpu_quota(patient.host)
    if isinstance(quota, float) and quota < cores:
        message = f"The container may use {quota:g} cores but sees {cores}; thread pools sized by the latter stall."
        yield Finding(
            "cpu-quota", False, "warn", message, f"Set OMP_NUM_THREADS={max(1, int(quota))}, or lift the quota."
        )
