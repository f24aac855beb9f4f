"""From a profile to what will be done: the cells, the units that workers execute, and the cells that are only declared.

A cell that quietly vanished between configuration and report reads as a pass, so every cell is named here first and the
verdict is held against this list.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Protocol, TypeVar

from harness.cells import Cell
from harness.coverage import Coverage, coverage
from harness.errors import UsageError
from harness.profile import Profile
from harness.store import FLOAT32 as FLOAT32
from harness.store import SERVING as SERVING
from harness.store import unit_id

A = TypeVar("A")
R = TypeVar("R")


class Declares(Protocol):
    """The side of an engine that planning needs (`harness.engines.base.Engine`)."""

    def supports(self, cell: Cell) -> Supported: ...


class Supported(Protocol):
    @property
    def ok(self) -> bool: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True)
class Unit:
    """One cell in one dtype, once: what one worker executes and records at a time."""

    cell: Cell
    lane: str  # SERVING or FLOAT32
    dtype: str
    launch: int = 0  # how many processes have run this very thing before

    @property
    def id(self) -> str:
        return unit_id(self.cell.id, self.lane, self.launch)


@dataclass(frozen=True)
class Plan:
    profile: Profile
    device: str
    cells: tuple[Cell, ...]
    declared: Mapping[str, str]  # cell id -> why it is declared and not executed
    units: tuple[Unit, ...]
    coverage: tuple[Coverage, ...]

    @property
    def holes(self) -> dict[str, str]:
        """Executed cells whose ladder leaves a size without a bucket and without a stated policy."""
        return {c.cell: c.hole for c in self.coverage if c.hole and c.cell not in self.declared}


def make_plan(profile: Profile, device: str, get_engine: Callable[[str], Declares]) -> Plan:
    """Ask every cell's engine whether it takes the cell. Raises `UsageError` for an unknown engine or model."""
    cells = tuple(_cells(profile))
    _refuse_shared_names(cells)
    engines = {name: _known(get_engine, name) for name in profile.axes.engine}
    declared: dict[str, str] = {}
    for cell in cells:
        support = _known(engines[cell["engine"]].supports, cell)
        if not support.ok:
            declared[cell.id] = support.reason or "the engine gives no reason"
    executed = [cell for cell in cells if cell.id not in declared]
    lanes = _lanes(profile, device)
    units = tuple(
        Unit(cell, lane, dtype, launch)
        for cell in executed
        for lane, dtype in lanes.items()
        for launch in range(profile.launches if lane == SERVING else 1)  # arithmetic needs no second process
    )
    return Plan(profile, device, cells, declared, units, tuple(coverage(profile, cell) for cell in cells))


def batches(units: Iterable[Unit], isolation: str) -> list[list[Unit]]:
    """Units that share a worker process, in plan order; with isolation "cell" each has its own."""
    if isolation == "cell":
        return [[unit] for unit in units]
    # Everything that a process is born with, or that would fill its memory with a second model.
    axes = ("engine", "model", "level", "op_backend", "ranks", "environment")

    def birth(unit: Unit) -> tuple[str, ...]:
        return (*(str(unit.cell[axis]) for axis in axes), unit.dtype, str(unit.launch))

    return [list(group) for _, group in groupby(sorted(units, key=birth), key=birth)]


def in_seeded_order(groups: Sequence[list[Unit]], seed: int) -> list[list[Unit]]:
    """Every group's first launch before any second, in an order that `seed` shuffles within each round.

    A machine that warms up made the cells at the end of a fixed order slower, night after night.
    """
    chance = random.Random(seed)
    drawn = [(group[0].launch, chance.random(), group) for group in groups]
    return [group for _, _, group in sorted(drawn, key=lambda entry: entry[:2])]


def _cells(profile: Profile) -> Iterable[Cell]:
    axes = profile.axes
    names = ("engine", "model", "op_backend", "level", "mode", "workload", "ladder")
    ladders = [sorted(ladder) for ladder in axes.ladder]
    lists: Sequence[Sequence[object]] = [ladders if name == "ladder" else getattr(axes, name) for name in names]
    for values in product(*lists):
        yield Cell.of(**dict(zip(names, values, strict=True)))


def _refuse_shared_names(cells: Sequence[Cell]) -> None:
    seen: set[str] = set()
    for cell in cells:
        if cell.id in seen:
            raise UsageError(f"cell {cell.id} is declared twice; name each ladder once (order does not count)")
        seen.add(cell.id)


def kind_of(device: str) -> str:
    """`cuda` of `cuda:1`."""
    return device.partition(":")[0]


def _lanes(profile: Profile, device: str) -> dict[str, str]:
    dtype = profile.numerics.serving_dtype.get(kind_of(device))
    if dtype is None:
        raise UsageError(
            f"profile {profile.name!r} names no serving dtype for device {device!r}; add it or use --dtype"
        )
    lanes = {SERVING: dtype}
    if profile.numerics.float32_lane and dtype != "float32":
        lanes[FLOAT32] = "float32"
    return lanes


def _known(ask: Callable[[A], R], value: A) -> R:
    try:
        return ask(value)
    except ValueError as error:  # an engine or model that nobody knows; the message lists the choices
        raise UsageError(str(error)) from error
