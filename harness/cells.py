"""A cell: one point of the matrix that a release is signed off over.

A cell is a sorted map of named axes with the defaults left out, so that an axis added next year renames no history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

#: Every axis with the value that goes without saying. Order is the order of the axes in a cell's name.
DEFAULTS: dict[str, Any] = {
    "engine": "atom_impl",
    "model": "smollm2-135m-instruct",
    "level": 0,
    "mode": "NONE",
    "workload": "decode",
    "ladder": None,
    "query_len": 1,
    "dtype": None,
    "op_backend": "torch",
    "ranks": 1,
    "environment": None,
}


class Cell(msgspec.Struct, frozen=True, order=True):
    """One cell. `axes` holds (name, value) pairs in the order of `DEFAULTS`, defaults left out; a list is a tuple."""

    axes: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, **axes: Any) -> Cell:
        unknown = sorted(set(axes) - set(DEFAULTS))
        if unknown:
            raise ValueError(f"unknown axis {unknown[0]!r}; the axes are {', '.join(DEFAULTS)}")
        frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in axes.items()}
        return cls(
            tuple((name, frozen[name]) for name in DEFAULTS if name in frozen and frozen[name] != DEFAULTS[name])
        )

    def __getitem__(self, axis: str) -> Any:
        value = dict(self.axes).get(axis, DEFAULTS[axis])
        return tuple(value) if isinstance(value, list) else value

    def as_dict(self) -> Mapping[str, Any]:
        return {name: self[name] for name in DEFAULTS}

    @property
    def id(self) -> str:
        """A name that a person can type and a file can carry: `level=3,mode=TR_HYBRID,ladder=1-2-4`."""

        return ",".join(f"{name}={_text(value)}" for name, value in self.axes) or "default"


def find_cell(query: str, ids: Sequence[str]) -> str:
    """The one cell that `query` names: its whole id, axes that single it out (defaults count), or a piece of its id.

    Raises `ValueError` that lists the candidates if there is none or more than one.
    """
    if query in ids:
        return query
    wanted = set(_terms(query))
    found = [cell for cell in ids if wanted <= _all_terms(cell)] or [cell for cell in ids if query in cell]
    if len(found) == 1:
        return found[0]
    said = f"{query!r} fits {len(found)} cells" if found else f"no cell fits {query!r}"
    raise ValueError("\n  ".join([f"{said}; name one of", *(found or ids)]))


def _text(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _terms(text: str) -> list[str]:
    """`level=3,ladder=1,2,4` as ["level=3", "ladder=1-2-4"]."""
    terms: list[str] = []
    for piece in text.split(","):
        if "=" in piece or not terms:
            terms.append(piece.strip())
        else:
            terms[-1] += f"-{piece.strip()}"
    return terms


def _all_terms(cell_id: str) -> set[str]:
    """Every axis of a cell as `name=value`, those that go without saying too."""
    said = dict(term.split("=", 1) for term in _terms(cell_id) if "=" in term)
    return {f"{name}={said.get(name, _text(default))}" for name, default in DEFAULTS.items()}
