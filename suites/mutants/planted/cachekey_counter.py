"""A key that counts: identical layers never share code, and no start-up finds what the last one compiled."""

from itertools import count
from typing import Any

from atom_impl.compilation import compiler_manager
from harness.mutants import Mutant, wrap

numbers = count()


def numbered(fingerprint: Any, *piece: Any) -> str:
    return f"{next(numbers):04x}" + str(fingerprint(*piece))[4:]


def versioned(fingerprint: Any, *piece: Any) -> str:
    return "0002" + str(fingerprint(*piece))[4:]


MUTANT = Mutant(
    kind="CACHEKEY",
    variant="key counts",
    changes="a piece's fingerprint begins with a running number",
    control_is="it begins with a constant.",
    caught_by=("closed.compiles",),
    says="How often Inductor ran, for how many distinct pieces, and that a key changes: CACHEKEY.",
    plant=lambda: wrap(compiler_manager, "piece_fingerprint", numbered),
    control=lambda: wrap(compiler_manager, "piece_fingerprint", versioned),
    level=3,
    mode="NONE",
    model="random:tiny-llama?layers=4",
    own_cache=True,
)
