"""Every option that more than one command takes, declared once, and the groups in which commands take them.

`run` and `signoff` each listed the same twelve options, and one of the two forgot the thirteenth.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import typer

from harness.cli.ending import command_line, one_ending
from harness.comparison.sides import Revisions
from harness.filters import Filters
from harness.signoff import Order

Options = TypeVar("Options")
P = ParamSpec("P")

Profile = Annotated[str, typer.Option(help="A profile's name, or the path of a TOML file.")]
Engine = Annotated[list[str] | None, typer.Option(help="Engine under test; may be repeated.")]
Model = Annotated[list[str] | None, typer.Option(help="Model to serve; may be repeated.")]
Level = Annotated[list[int] | None, typer.Option(help="Compilation level, 0 to 3; may be repeated.")]
Mode = Annotated[list[str] | None, typer.Option(help="Graph mode, such as NONE or TR_HYBRID; may be repeated.")]
Workload = Annotated[list[str] | None, typer.Option(help="decode or prefill; may be repeated.")]
Ladder = Annotated[list[str] | None, typer.Option(help="Capture sizes with commas, such as 1,2,4; may be repeated.")]
Dtype = Annotated[str | None, typer.Option(help="Serving dtype in place of the profile's.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; the GPU if there is one.")]
Results = Annotated[Path, typer.Option(help="Folder that keeps the results.")]
Seed = Annotated[int | None, typer.Option(help="Seed of all inputs in place of the profile's.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start anew even if an unfinished run could be resumed.")]
DebugReplay = Annotated[
    bool,
    typer.Option(
        "--debug-replay", help="Run every segment eagerly through the replay path: no kernel is replayed, never a pass."
    ),
]
Soak = Annotated[int | None, typer.Option(help="Interleaved replays at the end of each cell, such as 1000.")]
RunName = Annotated[str | None, typer.Option("--run", help="A run's name or folder; the newest one by default.")]
BaselinePython = Annotated[str | None, typer.Option(help="Interpreter of the baseline; this one by default.")]
CandidatePython = Annotated[str | None, typer.Option(help="Interpreter of the candidate; this one by default.")]
Pinned = Annotated[str, typer.Option(help="Commit of the pinned release: growth counts from it.")]
StepLimit = Annotated[float, typer.Option(help="Relative step that counts: 0.05 is 5 %.")]
DriftLimit = Annotated[float, typer.Option(help="Relative growth since the pinned release that counts.")]
DetectorName = Annotated[str, typer.Option(help="Change points by e-divisive, asv, or auto: the best installed.")]
AsvResults = Annotated[Path | None, typer.Option(help="asv's results folder; `asv` below --results by default.")]
AsvMachine = Annotated[str, typer.Option("--machine", help="asv's name of the machine; its hardware's by default.")]


@dataclass(frozen=True)
class Matrix:
    """Which cells: a profile, and what narrows it."""

    profile: Profile = "quick"
    engine: Engine = None
    model: Model = None
    level: Level = None
    mode: Mode = None
    workload: Workload = None
    device: Device = None

    def filters(self) -> Filters:
        return Filters(self.engine or [], self.model or [], self.level or [], self.mode or [], self.workload or [])


@dataclass(frozen=True)
class Narrowed(Matrix):
    """A matrix that may be narrowed to a ladder and a dtype as well."""

    ladder: Ladder = None
    dtype: Dtype = None

    def filters(self) -> Filters:
        return replace(super().filters(), ladder=self.ladder or [], dtype=self.dtype)


@dataclass(frozen=True)
class Sweep(Narrowed):
    """A matrix that is measured and recorded."""

    results: Results = Path("results")
    seed: Seed = None
    fresh: Fresh = False

    def filters(self) -> Filters:
        return replace(super().filters(), seed=self.seed)

    def order(self, *, use_baseline: bool = True, revisions: Revisions | None = None) -> Order:
        return Order(
            self.profile,
            self.filters(),
            self.device,
            self.results,
            self.fresh,
            command_line(),
            use_baseline,
            revisions,
        )


@dataclass(frozen=True)
class Driven(Sweep):
    """A sweep of one engine, whose steps may be driven in other ways than a release is."""

    debug_replay: DebugReplay = False
    soak: Soak = None

    def filters(self) -> Filters:
        return replace(super().filters(), debug_replay=self.debug_replay, soak=self.soak)


def takes(options: type[Options]) -> Callable[[Callable[Concatenate[Options, P], None]], Callable[..., None]]:
    """Give a command one option for each field of `options`; it gets them as its first argument, and one ending."""

    def expand(command: Callable[Concatenate[Options, P], None]) -> Callable[..., None]:
        shared = {field.name: field for field in fields(options)}  # type: ignore[arg-type]

        @functools.wraps(command)
        def call(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in shared}
            with one_ending():
                command(options(**chosen), **given)  # type: ignore[call-arg]

        hints = {**get_type_hints(options, include_extras=True), **get_type_hints(command, include_extras=True)}
        own = list(inspect.signature(command).parameters.values())[1:]
        defaults = {name: field.default for name, field in shared.items()} | {each.name: each.default for each in own}
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(name, kind, default=default, annotation=hints[name]) for name, default in defaults.items()
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return expand


def ends_well(command: Callable[P, None]) -> Callable[P, None]:
    """A command without shared options: one ending."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        with one_ending():
            command(*args, **kwargs)

    return call
