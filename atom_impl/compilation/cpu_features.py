"""What vector instructions Inductor may use on this CPU, found out once per machine and not once per process.

Inductor builds a small library for each instruction set and loads it in a process of its own, in every process again:
a second of each start, to learn what the machine can do.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from atom_impl.compilation.artefact_store import private_dir, write_atomically
from atom_impl.compilation.cache_identity import cache_root
from atom_impl.compilation.toolchain import compiler_version
from atom_impl.utils.stable_hash import stable_hash

logger = logging.getLogger(__name__)

FOLDER = "cpu_features"


def probe_cpu_features() -> None:
    """Let Inductor find out what the CPU can do in its own cache directory, where the probes are kept, not in an
    artefact's. A probe that a process with the same CPU, compiler and torch has seen work is not made again.
    """
    from torch._inductor.cpu_vec_isa import pick_vec_isa, valid_vec_isa_list

    if not valid_vec_isa_list.cache_info().currsize:
        with _remembered_probes(_file()):
            valid_vec_isa_list()
    pick_vec_isa()


@contextmanager
def _remembered_probes(file: Path) -> Iterator[None]:
    """Within the block Inductor's probe answers from `file` what is known there. What it learns anew is added, but
    never a failure: a compiler that was killed once must be asked again.
    """
    from torch._inductor.cpu_vec_isa import VecISA

    probe = VecISA.check_build
    known = _read(file)
    worked = set(known)

    def remembered(self: Any, code: str) -> bool:
        name = stable_hash([self.build_arch_flags(), code])[:16]
        if name not in worked and probe(self, code):
            worked.add(name)
        return name in worked

    VecISA.check_build = remembered  # type: ignore[method-assign]
    try:
        yield
    finally:
        VecISA.check_build = probe  # type: ignore[method-assign]
    if worked != known:
        _keep(file, worked)


def _file() -> Path:
    """Where the findings for this CPU, compiler and torch lie."""
    facts = {
        "cpu": _flags(),
        "torch": torch.__version__,
        "compiler": compiler_version(os.environ.get("CXX") or "g++"),
    }
    return cache_root() / FOLDER / f"{stable_hash(facts)[:16]}.json"


def _flags() -> str:
    """The first CPU's flags, as Linux tells them; elsewhere the name of torch's own choice of kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features")))
    return " ".join(sorted(next(named, torch.backends.cpu.get_cpu_capability()).split()))


def _read(file: Path) -> set[str]:
    """The probes that worked; none where nothing was kept, or what was kept cannot be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    return {name for name in found if isinstance(name, str)} if isinstance(found, list) else set()


def _keep(file: Path, worked: set[str]) -> None:
    """A finding that cannot be written costs the next process its time, and nothing else."""
    try:
        private_dir(file.parent)
        write_atomically(file, json.dumps(sorted(worked)) + "\n")
    except OSError as error:
        logger.warning("the CPU's features are not kept in %s: %s", file, error)
