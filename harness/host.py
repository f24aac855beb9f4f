"""Where facts about a machine come from, and nothing about what they mean.

A check that can only be tried on the machine it is about is never tried. So every file, command and package is asked
for here, and a test puts a folder and a few functions in their place.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNKNOWN = "unknown"  # nobody can say
NONE = "none"  # known to be absent


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit status, and both of its outputs."""

    status: int
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class TorchFacts:
    """What the installed torch says of itself. `error` tells why it cannot be imported; then nothing else is known."""

    version: str = UNKNOWN
    cuda: str = UNKNOWN
    hip: str = UNKNOWN
    rocm: str = UNKNOWN
    folder: Path | None = None
    gpus: tuple[tuple[str, str, int], ...] = ()  # name, arch, memory in MiB
    error: str = ""
    pci: tuple[str, ...] = ()  # PCI address of each of `gpus`; empty texts where torch does not say

    @property
    def built_for_gpu(self) -> bool:
        return not {self.cuda, self.hip} <= {UNKNOWN, NONE}


def run_command(command: Sequence[str], timeout_s: float = 60.0) -> Outcome | None:
    """Run a command without a shell. None: it is not installed, or it did not come back in time."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Outcome(done.returncode, done.stdout, done.stderr)


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, by its name on the index and not by the name that one imports."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_folder(package: str) -> Path | None:
    """Folder of a top-level package, found without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def torch_facts() -> TorchFacts:
    """Import torch and ask it. A broken installation is an answer and no exception; no GPU context is created."""
    try:
        import torch
    except Exception as error:  # a missing shared library is an OSError, a half-upgraded package an AttributeError
        return TorchFacts(error=f"{type(error).__name__}: {error}")
    gpus, pci = [], []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            arch = getattr(gpu, "gcnArchName", "") if torch.version.hip else f"sm_{gpu.major}{gpu.minor}"
            gpus.append((gpu.name, arch or UNKNOWN, gpu.total_memory >> 20))
            pci.append(pci_of(gpu))
    return TorchFacts(
        version=str(torch.__version__),  # a class of its own, which no encoder knows
        cuda=torch.version.cuda or NONE,
        hip=torch.version.hip or NONE,
        rocm=getattr(torch.version, "rocm", None) or UNKNOWN,
        folder=Path(torch.__file__).parent,
        gpus=tuple(gpus),
        pci=tuple(pci),
    )


def pci_of(gpu: Any) -> str:
    """`0000:1b:00.0`, of a torch that knows it."""
    parts = [getattr(gpu, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    known = [part for part in parts if isinstance(part, int)]
    return "{:04x}:{:02x}:{:02x}.0".format(*known) if len(known) == len(parts) else ""


def pci_address(text: str) -> str:
    """`0000:1b:00.0` of what NVML, amdsmi and torch call it; empty for anything else."""
    found = re.fullmatch(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?", text.strip().lower())
    return f"{(found[1] or '0')[-4:].zfill(4)}:{found[2]}:{found[3]}.{found[4] or '0'}" if found else ""


def version_tuple(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, to compare: "2.11.0+rocm7.2" gives (2, 11, 0), and "unknown" gives ()."""
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _total_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).total


def _may_use(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


@dataclass(frozen=True)
class Host:
    """One machine as it is asked. `root` stands for `/`; the callables are replaced in tests."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    run: Callable[[Sequence[str]], Outcome | None] = run_command
    version: Callable[[str], str | None] = installed_version
    package_folder: Callable[[str], Path | None] = package_folder
    torch: Callable[[], TorchFacts] = torch_facts
    which: Callable[[str], str | None] = shutil.which
    free_bytes: Callable[[Path], int] = _free_bytes
    total_bytes: Callable[[Path], int] = _total_bytes
    may_use: Callable[[Path], bool] = _may_use
    python: tuple[int, int, int] = sys.version_info[:3]
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str:
        """A small text file, stripped; "unknown" where it is missing, empty or may not be read."""
        try:
            return self.path(absolute).read_text(errors="replace").strip() or UNKNOWN
        except OSError:
            return UNKNOWN

    def glob(self, pattern: str) -> list[str]:
        """Absolute paths, as this host names them, that match a pattern below `root`; in natural order."""
        found = (f"/{path.relative_to(self.root)}" for path in self.root.glob(pattern.lstrip("/")))
        return sorted(found, key=lambda path: (len(path), path))

    def output(self, *command: str) -> str:
        """Standard output of a command that succeeded, stripped; otherwise "unknown"."""
        outcome = self.run(command)
        return (outcome.stdout.strip() or UNKNOWN) if outcome and outcome.status == 0 else UNKNOWN

    def gpu_nodes(self) -> list[str]:
        """Device nodes that say there is a GPU. A container may be given any one of several NVIDIA devices."""
        return self.glob("/dev/kfd") + self.glob("/dev/nvidia[0-9]*")

    def memory_mib(self) -> dict[str, int | str]:
        """Total and available memory, cut to the container's limit where one is set."""
        sizes: dict[str, int | str] = {"total": UNKNOWN, "available": UNKNOWN}
        for line in self.read("/proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            key = {"MemTotal": "total", "MemAvailable": "available"}.get(name)
            if key and rest.split():
                sizes[key] = int(rest.split()[0]) >> 10
        limit, used = self.read("/sys/fs/cgroup/memory.max"), self.read("/sys/fs/cgroup/memory.current")
        if limit.isdigit():
            sizes["total"] = _least(sizes["total"], int(limit) >> 20)
            sizes["available"] = _least(sizes["available"], (int(limit) - int(used if used.isdigit() else 0)) >> 20)
        return sizes

    def compiler(self) -> str | None:
        """The C++ compiler that Inductor and the software graph will call, by Inductor's own rule: CXX, else g++."""
        return self.which(self.environ.get("CXX") or "g++")


def _least(known: int | str, limit: int) -> int:
    return min(known, limit) if isinstance(known, int) else limit
