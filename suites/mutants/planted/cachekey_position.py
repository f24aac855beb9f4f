"""Artefacts named by position alone, in one directory for all: float32 loads what was compiled for bfloat16."""

from itertools import count
from pathlib import Path
from typing import Any

from atom_impl.compilation import compiler_manager
from harness.mutants import Mutant, wrap

pieces = count()


def by_position(fingerprint: Any, *piece: Any) -> str:
    return f"{next(pieces):032x}"


def one_directory(place: Any, *identity: Any) -> Path:
    return Path(place(*identity)).parents[2] / "shared" / "rank_0"


def salted(fingerprint: Any, *piece: Any) -> str:
    return "0" + str(fingerprint(*piece))[1:]


MUTANT = Mutant(
    kind="CACHEKEY",
    variant="key is a position",
    changes="a piece's key is its number, and the directory's name covers no configuration",
    control_is="the whole fingerprint with its first digit replaced.",
    caught_by=("crashed in capture", "crashed in build", "G3"),
    says="The dtypes that do not fit, the piece, and that its code came from the compile cache: another's.",
    plant=lambda: (
        wrap(compiler_manager, "piece_fingerprint", by_position),
        wrap(compiler_manager, "local_cache_dir", one_directory),
    ),
    control=lambda: wrap(compiler_manager, "piece_fingerprint", salted),
    level=3,
    mode="NONE",
    dtype=None,
    own_cache=True,
)
