"""asv's environment for this project: the engine of a commit, over the interpreter and the packages at hand.

asv's own environments build an isolated one for each commit, and nobody rebuilds torch forty times. Here `atom_impl`
comes from the commit, everything that measures from the running checkout, and site-packages stay as they are; so
`asv run v1..main`, `asv continuous`, `asv find` and `--interleave-rounds` work at the price of a `git checkout`.

`asv run --python=same` keeps asv's own environment, but for its name: asv writes the interpreter's path into the file
and its name, so that each checkout drew a line of its own, with somebody's home folder in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from asv import environment, util
from asv.console import log
from asv.environment import Environment, EnvironmentUnavailable, ExistingEnvironment, get_env_name
from asv.machine import Machine, MachineCollection

from harness.revision import carry

CHECKOUT = Path(__file__).resolve().parents[1]
ENGINE = "atom_impl"
#: What of the running checkout replaces the commit's: one way of measuring for all commits.
MEASURING = ("harness", "suites", "tools")
#: A change of one of these makes another line of the plot.
NAMED = ("torch", "triton", "amd-aiter")
OWN_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
#: Whether this commit's engine has what the running harness asks of an engine.
PROBE = (
    "from harness.cells import Cell; from harness.plugins import find_engine;"
    f"found = find_engine('{ENGINE}'); found.versions(); found.supports(Cell.of())"
)


class EngineOfCommit(Environment):
    """`environment_type: "engine"`. `python` is "same", or the version of the running interpreter."""

    tool_name = "engine"

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: Any) -> None:
        if not self.matches(python):
            raise EnvironmentUnavailable(
                f"python {python}: the engine environment runs in the one at hand, {OWN_PYTHON}"
            )
        self._requirements = named_versions()
        super().__init__(conf, OWN_PYTHON, self._requirements, tagged_env_vars)

    @classmethod
    def matches(cls, python: str) -> bool:
        return python in ("same", sys.executable, OWN_PYTHON)

    @property
    def installed_commit_hash(self) -> None:
        return None

    def check_presence(self) -> bool:
        return Path(self._path).is_dir()

    def _setup(self) -> None:
        Path(self._path).mkdir(parents=True, exist_ok=True)

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        """Check the commit out and put the running harness over it. Raises ProcessError if it is unsupported."""
        self._set_commit_hash(commit_hash)
        repo.checkout(self._build_root, commit_hash)
        overlay(Path(self._build_root), CHECKOUT, commit_hash)
        if reason := unsupported(Path(self._build_root)):
            log.warning(f"unsupported: the engine of {commit_hash[:8]} is too old for this harness: {reason}")
            raise util.ProcessError(["engine", commit_hash], 1, "", reason)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        env = dict(kwargs.pop("env", None) or os.environ)
        env.update(self._global_env_vars)
        env["PERFORMANCE_ROOT"] = self._build_root
        return util.check_output([sys.executable, *args], env=env, **kwargs)

    def run_executable(self, executable: str, args: list[str], **kwargs: Any) -> Any:
        if executable != "python":
            raise OSError(f"{executable}: the engine environment has no programs but python")
        return self.run(args, **kwargs)


class InterpreterAtHand(ExistingEnvironment):
    """`--python=same` under a name that says what is in it, and not where it is."""

    tool_name = "existing"

    def __init__(self, conf: Any, executable: str, requirements: dict[str, str], tagged_env_vars: Any) -> None:
        super().__init__(conf, executable, requirements, tagged_env_vars)
        self._requirements = named_versions()

    @property
    def python(self) -> str:
        return OWN_PYTHON

    @property
    def name(self) -> str:
        return str(get_env_name(self.tool_name, OWN_PYTHON, named_versions(), self._tagged_env_vars))


def setup() -> None:
    """asv calls this once, when it loads the plugin. What asv looks up by name is replaced: it offers no other way."""
    environment.ExistingEnvironment = InterpreterAtHand
    Machine.get_unique_machine_name = classmethod(lambda cls: machine_at_hand())


def machine_at_hand() -> str:
    """The name that asv gives this machine where `--machine` gives none: its hardware's, for a container's host name
    changes with every start. It is described in asv's own file, so that nobody has to answer asv's questions.
    """
    from harness.doctor import choose_device
    from harness.export.asv_machine import describe
    from harness.machine import fingerprint

    described = describe(fingerprint(), choose_device(os.environ.get("PERFORMANCE_DEVICE")))
    name = str(described["machine"])
    MachineCollection.save(name, {key: value for key, value in described.items() if key != "version"})
    return name


def overlay(root: Path, checkout: Path, commit: str) -> None:
    """Replace what measures in `root` by the copies of `checkout`; the engine stays as `commit` has it."""
    for name in MEASURING:
        shutil.rmtree(root / name, ignore_errors=True)
        shutil.copytree(checkout / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    carry(root, ENGINE, commit, checkout)


def unsupported(root: Path) -> str:
    """Why the running harness cannot drive the engine below `root`; "" if it can."""
    if not (root / ENGINE).is_dir():
        return f"it has no {ENGINE}/"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=root, env=env, capture_output=True, text=True, timeout=300)
    said = done.stderr.strip().splitlines()
    return (said[-1] if said else f"exit code {done.returncode}") if done.returncode else ""


def named_versions() -> dict[str, str]:
    versions = {name: _version(name) for name in NAMED}
    return {name: version for name, version in versions.items() if version}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
