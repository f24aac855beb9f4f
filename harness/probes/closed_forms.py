"""What a step must cost in segments, regions and copies, computed from the cell and a handful of model facts.

One extra clone before each collective cost a millisecond a step and no test looked. Exact counts need no statistics
and no baseline: a number that does not follow from the cell is wrong the first time it is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.coverage import Route
from harness.engines.base import Phase

#: How many units of a staging buffer a step of `rows` padded rows and `requests` padded requests copies.
UNITS: dict[str, Callable[[int, int], int]] = {
    "row": lambda rows, requests: rows,
    "request": lambda rows, requests: requests,
    "request+1": lambda rows, requests: requests + 1,
    "step": lambda rows, requests: 1,
}


@dataclass(frozen=True)
class ModelFacts:
    """What `EngineSession.expected()` states. `staging`: name, unit of growth and bytes of a unit of each copy."""

    layers: int
    split_ops_per_layer: int
    hidden_size: int
    itemsize: int
    staging: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, expected: Mapping[str, Any]) -> ModelFacts:
        names = ("layers", "split_ops_per_layer", "hidden_size", "itemsize")
        missing = [name for name in names if name not in expected]
        if missing:
            raise ValueError(f"expected() does not state {missing[0]!r}; closed forms need {', '.join(names)}")
        staging = tuple(expected.get("staging", ()))
        unknown = [entry["per"] for entry in staging if entry["per"] not in UNITS]
        if unknown:
            raise ValueError(f"staging grows per {unknown[0]!r}; a unit is one of {', '.join(UNITS)}")
        layers, splits, hidden_size, itemsize = (int(expected[name]) for name in names)
        return cls(layers, splits, hidden_size, itemsize, staging)

    @property
    def split_ops(self) -> int:
        return self.layers * self.split_ops_per_layer


@dataclass(frozen=True)
class StepForm:
    """One step's exact counts."""

    segments: int
    regions: int
    copies: Mapping[str, tuple[int, int]]  # kind -> (count, bytes); what is not listed must be zero


def step_form(facts: ModelFacts, route: Route, phase: Phase, *, requests: int, rows: int) -> StepForm:
    """A step of `requests` requests and `rows` live rows that takes `route`."""
    padded = route.bucket or rows
    padded_requests = padded if phase is Phase.DECODE else requests
    copies = {}
    if facts.staging:
        sizes = [UNITS[entry["per"]](padded, padded_requests) * int(entry["bytes"]) for entry in facts.staging]
        copies["staging"] = (len(sizes), sum(sizes))
    if route.bucket is None:
        return StepForm(0, 0, copies)
    copies["output"] = (1, route.bucket * facts.hidden_size * facts.itemsize)
    # Every split op of these models is an eager region; FULL records them inside its one graph.
    regions = facts.split_ops if route.mode == "TR_HYBRID" else 0
    return StepForm(regions + 1, regions, copies)


def differences(form: StepForm, claim: Mapping[str, Any]) -> dict[str, str]:
    """What departs from the form: the counter's name with the figures in a phrase."""
    found = {}
    eager = form.segments == 0
    for name, number in (("segments", form.segments), ("regions", form.regions)):
        # Without a recording a region is an ordinary call, and an engine need not count it.
        if not (eager and name == "regions") and claim.get(name) != number:
            found[name] = f"{claim.get(name)} {name} instead of {number}"
    copies = claim.get("copies") or {}
    for kind in sorted({*form.copies, *copies}):
        want = form.copies.get(kind, (0, 0))
        got = copies.get(kind, {})
        have = (got.get("count", 0), got.get("bytes", 0))
        if kind == "staging" and kind not in form.copies:
            continue  # the engine declares no staging layout; reported, not judged
        if have != want:
            found[f"copies.{kind}"] = f"{have[0]} {kind} copies of {have[1]} bytes instead of {want[0]} of {want[1]}"
    return found


def piece_forms(facts: ModelFacts, level: int) -> dict[str, int]:
    """Compile counters of one build. Levels 0 and 1 generate no code; level 2's count is Inductor's own affair."""
    if level in (0, 1):
        return {"num_inductor_compiles": 0, "num_piecewise_graphs_seen": 0}
    if level == 3:
        pieces = facts.split_ops + 1
        return {
            "num_piecewise_graphs_seen": pieces + facts.split_ops,
            "num_piecewise_capturable_graphs_seen": pieces,
        }
    return {}


def distinct_pieces(facts: ModelFacts) -> int:
    """The first piece, the last, and one for all between them."""
    return min(3, facts.split_ops + 1)
