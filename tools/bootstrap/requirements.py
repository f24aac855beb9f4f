"""What pyproject.toml asks for, and which of it an interpreter lacks.

`pip install` may reach for the network even to learn that nothing is missing: a laptop on a train could not run tests.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

#: What each use of the checkout needs beyond the package's own dependencies.
EXTRAS = {
    "core": ("torch",),
    "test": ("torch", "test"),
    "bench": ("torch", "asv"),
    "all": ("torch", "test", "dev", "asv"),
}

_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<rule>==|>=)(?P<version>[0-9][0-9.]*)")


@dataclass(frozen=True)
class Requirement:
    """`name>=version` or `name==version`: the two forms that pyproject.toml uses."""

    name: str
    rule: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Requirement:
        match = _LINE.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"requirement {text!r} is neither NAME>=VERSION nor NAME==VERSION; write it as one of them"
            )
        return cls(**match.groupdict())

    def met_by(self, version: str | None) -> bool:
        """Whether an installed `version` will do. A local part, as in 2.13.0+cpu, does not count."""
        if version is None:
            return False
        have, want = release(version), release(self.version)
        return have == want if self.rule == "==" else have >= want

    def __str__(self) -> str:
        return f"{self.name}{self.rule}{self.version}"


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without trailing zeros: "2.11.0a1+rocm7" is (2, 11)."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def declared(pyproject: Path, use: str = "all") -> list[Requirement]:
    """The requirements of one use ("core", "test", "bench", "all"), in the order of the file."""
    project = tomllib.loads(pyproject.read_text())["project"]
    lines = list(project["dependencies"])
    for extra in EXTRAS[use]:
        lines += project["optional-dependencies"][extra]
    return [Requirement.parse(line) for line in lines]


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def unmet(
    requirements: Iterable[Requirement], version_of: Callable[[str], str | None] = installed_version
) -> list[tuple[Requirement, str | None]]:
    """Each requirement that is not met, with the version found instead (None: not installed)."""
    found = [(requirement, version_of(requirement.name)) for requirement in requirements]
    return [(requirement, version) for requirement, version in found if not requirement.met_by(version)]


def pins(constraints: Path) -> list[Requirement]:
    """The `name==version` lines of a constraints file."""
    lines = (line.split("#")[0].strip() for line in constraints.read_text().splitlines())
    return [Requirement.parse(line) for line in lines if line]
