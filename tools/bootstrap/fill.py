"""What goes into an environment: around a GPU torch that stays as it is, or with the pinned CPU torch.

Both end by importing torch and by comparing what is there with what was meant, and raise if these differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.bootstrap.errors import EnvironmentUnfit, say
from tools.bootstrap.requirements import Requirement, declared, pins, release, unmet
from tools.bootstrap.torch_build import TorchBuild, built_together
from tools.bootstrap.venv import Venv, write_constraints


def around(venv: Venv, torch: TorchBuild, pyproject: Path) -> None:
    """Install everything but torch, and hold what was built together with it at its version."""
    say(f"torch {torch.version} for {torch.gpu} stays as it is; {venv.folder} lies over it")
    if release(torch.version) < (2, 8):
        say("it is older than 2.8: only the adaptor for old versions is tested with it")
    before = built_together()
    wanted = [need for need in declared(pyproject) if need.name != "torch"]
    for need in wanted:
        if need.name in before and not need.met_by(before[need.name]):
            found = f"{need.name} {before[need.name]}"
            raise EnvironmentUnfit(f"{need} is needed, and {found} goes with this torch; use a newer image")
    held = venv.folder / "held.txt"
    write_constraints(held, before)
    _install_missing(venv, wanted, held)
    unchanged(venv, torch, before)


def unchanged(venv: Venv, torch: TorchBuild, before: Mapping[str, str]) -> None:
    """Raise unless `venv` sees the same files of torch and the same versions of what was built with it."""
    facts = venv.facts()
    now: Mapping[str, str] = facts["built_together"]
    moved = [f"{name} {was} -> {now.get(name, 'gone')}" for name, was in before.items() if now.get(name) != was]
    seen: dict[str, Any] = facts["torch"] or {}
    moved += [f"torch's {key} {was} -> {seen.get(key)}" for key, was in asdict(torch).items() if seen.get(key) != was]
    if moved:
        raise EnvironmentUnfit(f"the install changed what had to stay: {'; '.join(moved)}. Remove {venv.folder}.")
    venv.import_torch()


def with_cpu_torch(venv: Venv, pyproject: Path, constraints: Path) -> None:
    """Install the tested versions of everything, torch first and by itself."""
    exact = {pin.name: pin for pin in pins(constraints)}
    torch = exact["torch"]
    if unmet([torch], venv.facts(["torch"])["versions"].get):
        metadata = venv.would_install(torch, constraints)
        if any(line.startswith(("nvidia-", "cuda-")) for line in metadata.get("requires_dist", [])):
            say("pip finds torch only with CUDA's libraries, several GB. For the small CPU build press Ctrl-C and name")
            say("the index of PyTorch's CPU wheels in PIP_EXTRA_INDEX_URL (README, Set-up).")
        say(f"installing torch {metadata.get('version', torch.version)}")
        venv.pip([torch], constraints)
    _install_missing(venv, [exact.get(need.name, need) for need in declared(pyproject)], constraints)
    version = venv.facts(["torch"])["versions"]["torch"]
    if not torch.met_by(version):
        raise EnvironmentUnfit(f"torch {version} is installed instead of {torch}; remove {venv.folder} and try again")
    venv.import_torch()


def _install_missing(venv: Venv, wanted: Sequence[Requirement], constraints: Path) -> None:
    versions = venv.facts([need.name for need in wanted])["versions"]
    missing = [need for need, _ in unmet(wanted, versions.get)]
    if missing:
        say(f"installing {len(missing)} packages and what they need: {', '.join(need.name for need in missing)}")
        venv.pip(missing, constraints)
