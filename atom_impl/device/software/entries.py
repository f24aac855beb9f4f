"""What a recording holds: launches in order, with their arguments as they were.

A host integer that a launch was given is part of the graph for ever. The entries keep it by value, so that an auditor
can show the `splits=1` that was frozen when the step needed four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from atom_impl.device.software.operators import tensors_in


class Moment(NamedTuple):
    """Where a launch stands while side streams run: the how-manieth of its stream, and how many of each it follows."""

    stream: str
    number: int
    seen: dict[str, int]


@dataclass(slots=True)
class Entry:
    """One launch. `first_event` and `last_event` bound its allocations in the pool's log during the capture."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    site: str
    first_event: int = 0
    last_event: int = 0
    resized: frozenset[int] = field(
        default_factory=frozenset
    )  # outputs that the capture resized; replay finds them sized
    results: tuple[torch.Tensor, ...] = ()  # aliases of what it allocated and returned
    written_at: tuple[int, ...] = ()  # of a foreign kernel: the arguments that it may write
    moment: Moment | None = None  # None where no side stream was forked

    def __str__(self) -> str:
        shapes = ", ".join(
            f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors_in(list(self.args))
        )
        return f"{self.name}({shapes}), recorded at {self.site}"


class RecordedOp(NamedTuple):
    """One launch for an auditor: its name, its tensors (aliases), its host scalars by value with their place, and the
    file and line that made it.
    """

    name: str
    tensors: tuple[torch.Tensor, ...]
    scalars: tuple[tuple[str, Any], ...]
    site: str = ""


def describe(entry: Entry) -> RecordedOp:
    arguments = {**{str(position): value for position, value in enumerate(entry.args)}, **entry.kwargs}
    return RecordedOp(entry.name, tuple(tensors_in(arguments)), tuple(_scalars(arguments)), entry.site)


def _scalars(arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for place, value in arguments.items():
        if isinstance(value, (list, tuple)):
            yield from _scalars({f"{place}[{position}]": item for position, item in enumerate(value)})
        elif not isinstance(value, torch.Tensor):
            yield place, value
