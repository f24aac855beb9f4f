"""What a mutant declares, and how its file is read.

A fault planted by hand is found by whoever planted it. The declaration says beforehand which gate must see it and what
a stranger would learn from the message, so that luck does not count.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from harness.errors import UsageError
from harness.mutants.kinds import KINDS

Patch = Callable[[], object]


class Where(str, Enum):
    """Which process the change is made in."""

    WORKER = "worker"  # when the cell is opened, in the worker that measures it
    COMMAND = "command"  # in the command and in its workers, before anything is planned


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One planted fault with its control.

    `caught_by` names the gates that must see it, any of them: a gate ("G1"), a fate with its phase ("crashed in
    capture"), or a fate of the cell ("not-run"). `says` is what the message tells someone who did not plant it.
    `survives` is set for a fault that nothing sees yet, and says why; it fails as soon as something does.
    """

    kind: str
    variant: str
    changes: str
    control_is: str
    caught_by: tuple[str, ...]
    says: str
    plant: Patch
    control: Patch
    level: int = 0
    mode: str = "FULL"
    workload: str = "decode"
    dtype: str | None = "float32"  # None: the profile's serving dtype and its float32 lane
    model: str | None = None
    where: Where = Where.WORKER
    simulated: bool = False
    own_cache: bool = False  # planted and control each start from an empty compile cache
    quick: bool = False  # one of the dozen that `pytest suites/mutants` runs
    gpu: bool = False  # one of the subset that is run on real graphs
    cpu_only: str = ""  # why it cannot be planted, or not be seen, on a GPU
    survives: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.variant}"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is not in the catalogue; choose from {', '.join(KINDS)}")
        if not self.caught_by and not self.survives:
            raise ValueError(f"{self.name}: caught_by is empty; name the gate that must see it, or say why none does")
        if self.gpu and self.cpu_only:
            raise ValueError(f"{self.name}: gpu and cpu_only ({self.cpu_only}) exclude each other; drop one")


def load_mutant(path: Path) -> Mutant:
    """The `MUTANT` that the file declares. Raises `UsageError` for a file that cannot be imported or declares none."""
    name = f"harness_mutant_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file; a mutant is a module that assigns MUTANT")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"mutant {path} cannot be imported: {type(error).__name__}: {error}") from error
    mutant = getattr(module, "MUTANT", None)
    if not isinstance(mutant, Mutant):
        raise UsageError(f"{path} assigns no MUTANT; add MUTANT = Mutant(...)")
    return mutant


def find_mutants(folder: Path) -> dict[Path, Mutant]:
    """Every mutant below `folder/planted`, in the order of the catalogue. Raises `UsageError` if there is none."""
    files = sorted((folder / "planted").glob("*.py"))
    if not files:
        raise UsageError(f"no mutant below {folder / 'planted'}; name the folder that holds planted/ and mutants.toml")
    found = {path.resolve(): load_mutant(path) for path in files}
    return dict(sorted(found.items(), key=lambda item: (KINDS.index(item[1].kind), item[1].variant)))
