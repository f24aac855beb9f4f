"""What a command line narrows a profile to, checked before any work starts.

A narrowed sign-off that calls itself the whole one is worse than none, so what was narrowed travels with the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import msgspec

from harness.errors import UsageError
from harness.profile import DEVICES, DTYPES, Profile, check


@dataclass(frozen=True)
class Filters:
    """Values that replace the profile's own; an empty list leaves the profile's."""

    engine: Sequence[str] = ()
    model: Sequence[str] = ()
    level: Sequence[int] = ()
    mode: Sequence[str] = ()
    workload: Sequence[str] = ()
    ladder: Sequence[str] = ()  # each "1,2,4"
    dtype: str | None = None
    seed: int | None = None
    debug_replay: bool = False
    soak: int | None = None  # interleaved replays at the end of each cell

    def named(self) -> dict[str, list[str]]:
        """What was narrowed, as text for the record."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        debug_replay = ["on"] if given.pop("debug_replay") else []
        single = ("dtype", "seed", "soak")
        lists = {name: [value] if name in single else list(value) for name, value in given.items()}
        lists["debug_replay"] = debug_replay
        return {name: [str(v) for v in values] for name, values in lists.items() if values not in ([], [None])}


def narrow(profile: Profile, filters: Filters) -> Profile:
    """The profile with the filters' values in place of its own. Raises `UsageError` if the result breaks a rule."""
    axes = {name: list(getattr(filters, name)) for name in ("engine", "model", "level", "mode", "workload")}
    axes = {name: values for name, values in axes.items() if values}
    if filters.ladder:
        axes["ladder"] = [parse_ladder(text) for text in filters.ladder]
    numerics = profile.numerics
    if filters.dtype is not None:
        if filters.dtype not in DTYPES:
            raise UsageError(f"unknown dtype {filters.dtype!r}; choose from {', '.join(DTYPES)}")
        numerics = msgspec.structs.replace(numerics, serving_dtype=dict.fromkeys(DEVICES, filters.dtype))
    if filters.seed is not None:
        numerics = msgspec.structs.replace(numerics, seed=filters.seed)
    if filters.soak is not None:
        numerics = msgspec.structs.replace(numerics, soak_steps=filters.soak)
    narrowed = msgspec.structs.replace(
        profile,
        axes=msgspec.structs.replace(profile.axes, **axes),
        numerics=numerics,
        debug_replay=profile.debug_replay or filters.debug_replay,
    )
    try:
        check(narrowed)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return narrowed


def parse_ladder(text: str) -> list[int]:
    """`"1,2,4"` as sizes. Raises `UsageError` for anything that is not a whole number."""
    sizes = []
    for part in text.split(","):
        try:
            sizes.append(int(part))
        except ValueError:
            raise UsageError(
                f"ladder {text!r}: {part.strip()!r} is not a whole number; write sizes with commas, as in 1,2,4"
            ) from None
    return sizes
