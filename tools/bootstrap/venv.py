"""The folder `.venv`: made, laid over another interpreter's packages, and filled by pip.

`--system-site-packages` is not enough for the overlay: in a container python3 often is a virtual environment itself,
and a second one made from it sees the base interpreter's packages, not the first one's torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bootstrap.errors import EnvironmentUnfit
from tools.bootstrap.requirements import Requirement

_PLAIN_VERSION = re.compile(r"[0-9][0-9A-Za-z.!+]*")


class Venv:
    """One virtual environment. `root` is the checkout that it serves."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.python = folder / "bin" / "python"

    def create(self) -> None:
        """Make the folder from this interpreter; a note that lies in it already is left there."""
        done = subprocess.run([sys.executable, "-m", "venv", str(self.folder)], capture_output=True, text=True)
        if done.returncode:
            raise EnvironmentUnfit(
                f"{sys.executable} -m venv failed:\n{(done.stdout + done.stderr).strip()}\n"
                "On Debian the package python3-venv brings what is missing; or use this interpreter: make ENV=current"
            )

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def site_packages(self) -> Path:
        return self.folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def overlay(self, folders: Sequence[str]) -> None:
        """Put `folders` behind this environment's own packages, editable installs within them included.

        Python 3.11 seeds a new environment with an old setuptools, which would hide the one that builds kernels.
        """
        lines = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders)
        (self.site_packages() / "_overlay.pth").write_text(lines)
        if folders and (self.site_packages() / "setuptools").is_dir():
            self._pip("uninstall", "--yes", "setuptools")

    def link_checkout(self) -> None:
        """Make the checkout importable from any working directory, and `harness` a command."""
        (self.site_packages() / "_checkout.pth").write_text(f"{self.root}\n")
        command = self.folder / "bin" / "harness"
        command.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m harness "$@"\n')
        command.chmod(0o755)

    def facts(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """What `tools.bootstrap.inspect` prints in this environment."""
        done = subprocess.run(
            [str(self.python), "-m", "tools.bootstrap.inspect", *names], cwd=self.root, capture_output=True, text=True
        )
        if done.returncode:
            raise EnvironmentUnfit(
                f"{self.python} does not run:\n{done.stderr.strip()}\nRemove {self.folder} and try again."
            )
        return dict(json.loads(done.stdout))

    def import_torch(self) -> None:
        """Raise EnvironmentUnfit unless torch imports."""
        done = subprocess.run([str(self.python), "-c", "import torch"], cwd=self.root, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip()[-1500:]
            raise EnvironmentUnfit(f"torch is installed and does not import in {self.python}:\n{last}")

    def pip(self, requirements: Sequence[Requirement], constraints: Path) -> None:
        """Install `requirements` within `constraints`. Raises EnvironmentUnfit with pip's last words."""
        done = self._pip("install", "-c", str(constraints), *map(str, requirements))
        if done.returncode:
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
            raise EnvironmentUnfit(f"pip could not finish:\n{last}\nNothing is marked ready; run it again.")

    def would_install(self, requirement: Requirement, constraints: Path) -> Mapping[str, Any]:
        """The metadata of the file that pip would choose for `requirement`; empty if it cannot say."""
        done = self._pip("install", "--dry-run", "--no-deps", "--report", "-", "-c", str(constraints), str(requirement))
        try:
            return dict(json.loads(done.stdout)["install"][0]["metadata"])
        except (ValueError, LookupError):
            return {}

    def _pip(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            str(self.python),
            "-m",
            "pip",
            verb,
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
            *arguments,
        ]
        environment = {**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, env=environment)


def own_folders(torch_folder: str) -> list[str]:
    """The folders from which this interpreter takes its packages, the one that holds its torch included."""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    holder = str(Path(torch_folder).parent)
    if holder not in {str(Path(folder).resolve()) for folder in folders}:
        folders.append(holder)
    return [folder for folder in folders if Path(folder).is_dir()]


def write_constraints(path: Path, versions: Mapping[str, str]) -> None:
    """A constraints file that holds every package of `versions` where it is."""
    lines = [f"{name}=={version}\n" for name, version in versions.items() if _PLAIN_VERSION.fullmatch(version)]
    path.write_text("".join(lines))
