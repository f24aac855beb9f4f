"""A plain install once replaced a container's ROCm torch by a CUDA one, and everything after it passed on the CPU.

The container here is a virtual environment whose torch is nothing but a version file; what is made over it is real.
Nothing in this module reaches for the network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.bootstrap import fill, stamp
from tools.bootstrap.errors import EnvironmentUnfit
from tools.bootstrap.prepare import CPU_PINS, PYPROJECT, ROOT, make_plan
from tools.bootstrap.requirements import Requirement, declared, pins, release, unmet
from tools.bootstrap.torch_build import TorchBuild
from tools.bootstrap.venv import Venv

ROCM = TorchBuild("2.9.1+rocm7.2.1.gitabc", None, "7.2.53211", "/opt/torch", "0" * 64)
CPU = TorchBuild("2.13.0+cpu", None, None, "/opt/torch", "1" * 64)


def add_distribution(site: Path, name: str, version: str) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").touch()
    (info / "INSTALLER").write_text("image\n")


def add_torch(site: Path, version: str, hip: str | None, cuda: str | None = None) -> None:
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("from torch.version import __version__\n")
    (site / "torch" / "version.py").write_text(f"__version__ = {version!r}\ncuda = {cuda!r}\nhip = {hip!r}\n")
    add_distribution(site, "torch", version)


def site_of(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def make_image(folder: Path) -> Path:
    """An interpreter that lives in a virtual environment and has a ROCm torch and all that pyproject.toml asks for."""
    venv.create(folder, with_pip=False, symlinks=True)
    add_torch(site_of(folder), ROCM.version, ROCM.hip)
    add_distribution(site_of(folder), "setuptools", "69.5.1")
    add_distribution(site_of(folder), "amd-aiter", "0.1.5")
    for need in declared(PYPROJECT):
        if need.name != "torch":
            add_distribution(site_of(folder), need.name, need.version)
    return folder


@dataclass(frozen=True)
class Machine:
    """A container's interpreter and the environment over it."""

    image: Path
    made: Path

    def bootstrap(self) -> subprocess.CompletedProcess[str]:
        return bootstrap(self.image / "bin" / "python", "--venv", str(self.made))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, subprocess.CompletedProcess[str]]:
    """A machine on which `make env` has run once, and what it said. Tests leave it as it is."""
    root = tmp_path_factory.mktemp("machine")
    machine = Machine(make_image(root / "image"), root / "made")
    return machine, machine.bootstrap()


@pytest.fixture
def machine(fresh: tuple[Machine, object], tmp_path: Path) -> Machine:
    """A copy of that machine that a test may damage, set up for its own place."""
    shutil.copytree(fresh[0].image, tmp_path / "image", symlinks=True)
    shutil.copytree(fresh[0].made, tmp_path / "made", symlinks=True)
    copy = Machine(tmp_path / "image", tmp_path / "made")
    assert copy.bootstrap().returncode == 0
    return copy


def bootstrap(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    command = [str(python), "-m", "tools.bootstrap", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


def test_an_environment_over_a_gpu_torch_keeps_that_very_torch(
    fresh: tuple[Machine, subprocess.CompletedProcess[str]],
) -> None:
    machine, done = fresh
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"torch {ROCM.version} for HIP {ROCM.hip} stays as it is" in done.stdout
    facts = Venv(machine.made, ROOT).facts(["setuptools", "amd-aiter"])
    assert facts["torch"]["folder"] == str((site_of(machine.image) / "torch").resolve())
    assert facts["versions"] == {"setuptools": "69.5.1", "amd-aiter": "0.1.5"}
    assert not (site_of(machine.made) / "torch").exists()


def test_the_second_time_nothing_is_done_and_nothing_is_said(machine: Machine) -> None:
    before = (machine.made / stamp.NAME).stat().st_mtime_ns
    again = machine.bootstrap()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert (machine.made / stamp.NAME).stat().st_mtime_ns == before


def test_an_activated_environment_is_prepared_from_the_interpreter_below_it(machine: Machine) -> None:
    within = machine.made / "bin" / "python"
    from_within = bootstrap(within, "--venv", str(machine.made))
    assert (from_within.returncode, from_within.stdout) == (0, "")
    (machine.made / stamp.NAME).unlink()
    lost = bootstrap(within, "--venv", str(machine.made))
    assert lost.returncode == 4
    assert "deactivate it, or name another: make PYTHON=" in lost.stdout


def test_an_environment_follows_the_image_when_its_torch_is_replaced(machine: Machine) -> None:
    version = site_of(machine.image) / "torch" / "version.py"
    version.write_text(version.read_text().replace("2.9.1", "2.10.0"))
    again = machine.bootstrap()
    assert again.returncode == 0
    assert "torch 2.10.0+rocm7.2.1.gitabc for HIP" in again.stdout


def test_an_install_that_hid_the_gpu_torch_is_refused(machine: Machine) -> None:
    environment = Venv(machine.made, ROOT)
    facts = environment.facts()
    torch, before = TorchBuild(**facts["torch"]), facts["built_together"]
    fill.unchanged(environment, torch, before)
    add_torch(site_of(machine.made), "2.13.0", hip=None, cuda="13.0")
    with pytest.raises(EnvironmentUnfit, match=r"torch 2\.9\.1\S+ -> 2\.13\.0.*torch's hip 7\.2\S+ -> None"):
        fill.unchanged(environment, torch, before)


def test_a_torch_of_its_own_in_an_environment_made_here_is_cleared_away(machine: Machine) -> None:
    add_torch(site_of(machine.made), "2.13.0+cpu", hip=None)
    note = machine.made / stamp.NAME
    note.write_text(note.read_text().replace('"key": "', '"key": "older '))
    done = machine.bootstrap()
    assert done.returncode == 0
    assert "anew: it holds a torch of its own (2.13.0+cpu)" in done.stdout
    assert Venv(machine.made, ROOT).facts()["torch"]["version"] == ROCM.version


def test_an_environment_that_was_not_made_here_is_never_removed(machine: Machine) -> None:
    add_torch(site_of(machine.made), "2.13.0+cpu", hip=None)
    (machine.made / stamp.NAME).unlink()
    refused = machine.bootstrap()
    assert refused.returncode == 4
    assert "was not made here and holds a torch of its own" in refused.stdout
    assert (site_of(machine.made) / "torch").exists()


def test_an_interrupted_install_is_taken_up_again(machine: Machine) -> None:
    note = machine.made / stamp.NAME
    note.write_text(json.dumps({**json.loads(note.read_text()), "ready": False}))
    (machine.made / "bin" / "harness").unlink()
    assert "is ready after" in machine.bootstrap().stdout
    assert (machine.made / "bin" / "harness").exists()


def test_a_package_too_old_for_us_but_built_with_the_gpu_torch_is_named(machine: Machine) -> None:
    numpy = next(need for need in declared(PYPROJECT) if need.name == "numpy")
    old = site_of(machine.image) / f"numpy-{numpy.version}.dist-info" / "METADATA"
    old.write_text("Name: numpy\nVersion: 1.20.3\n")
    note = machine.made / stamp.NAME
    note.write_text(note.read_text().replace('"key": "', '"key": "older '))
    done = machine.bootstrap()
    assert done.returncode == 4
    assert f"{numpy} is needed, and numpy 1.20.3 goes with this torch" in done.stdout
    assert '"ready": false' in note.read_text()


def test_the_interpreter_at_hand_installs_nothing_and_names_what_it_lacks(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    done = bootstrap(bare / "bin" / "python", "--current", "--need", "core")
    assert done.returncode == 4
    for need in declared(PYPROJECT, "core"):
        assert f"{need}  (found: none)" in done.stdout
    assert "hypothesis" not in done.stdout
    assert not list(site_of(bare).iterdir())


def test_the_interpreter_at_hand_passes_when_it_has_everything(fresh: tuple[Machine, object]) -> None:
    done = bootstrap(fresh[0].image / "bin" / "python", "--current", "--need", "all")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("found", [None, CPU])
def test_a_machine_that_shows_a_gpu_gets_no_cpu_torch_unasked(tmp_path: Path, found: TorchBuild | None) -> None:
    node = tmp_path / "kfd"
    node.touch()
    with pytest.raises(EnvironmentUnfit, match=r"shows a GPU \(.*kfd\).*make PYTHON=.*make DEVICE=cpu"):
        make_plan(None, found, [node])
    assert make_plan("cpu", found, [node]).overlaid is None
    assert make_plan(None, found, [tmp_path / "no-such-node"]).overlaid is None


def test_a_gpu_torch_is_laid_under_whatever_the_device_asked_for(tmp_path: Path) -> None:
    assert make_plan(None, ROCM, []).overlaid == ROCM
    assert make_plan("cpu", ROCM, []).overlaid == ROCM


def test_the_key_changes_with_the_torch_below(tmp_path: Path) -> None:
    keys = {make_plan(None, found, []).key for found in (None, ROCM, TorchBuild("2.10", None, "7.2", "/opt/torch", ""))}
    assert len(keys) == 3


def test_torch_is_asked_for_by_nothing_but_its_own_extra() -> None:
    assert [need.name for need in declared(PYPROJECT)].count("torch") == 1
    assert next(pin for pin in pins(CPU_PINS) if pin.name == "torch").rule == "=="


def test_the_tested_versions_meet_what_the_project_asks_for() -> None:
    tested = {pin.name: pin.version for pin in pins(CPU_PINS)}
    assert unmet(declared(PYPROJECT), tested.get) == []


@pytest.mark.parametrize(
    ("need", "version", "met"),
    [
        ("torch>=2.8", "2.13.0+cpu", True),
        ("torch>=2.8", "2.8", True),
        ("torch>=2.8", "2.7.1", False),
        ("torch>=2.8", None, False),
        ("asv==0.6.6", "0.6.6", True),
        ("asv==0.6.6", "0.6.7", False),
        ("numpy>=1.26", "2.0.0rc1", True),
    ],
)
def test_versions_are_compared_by_number(need: str, version: str | None, met: bool) -> None:
    assert Requirement.parse(need).met_by(version) is met


def test_trailing_zeros_and_local_parts_make_no_other_version() -> None:
    assert release("2.11.0+cu130") == release("2.11") == (2, 11)


@pytest.mark.parametrize("line", ["torch", "torch<3", "torch>=2.8,<3", "asv @ file.whl"])
def test_a_requirement_in_another_form_is_refused_with_the_two_that_are_read(line: str) -> None:
    with pytest.raises(ValueError, match="neither NAME>=VERSION nor NAME==VERSION"):
        Requirement.parse(line)
