"""Where the microseconds of one step went, by a profile: dispatch, staging, launch, replay, gaps, regions, output.

"Graphs made it slower" was true and useless: the replay took a third of the time, and a copy of the block table between
two segments the rest. A figure for the whole step cannot say which part grew.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from harness.engines.census import around_launches

STEP, REPLAY = "harness.step", "harness.replay"
_GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
Span = tuple[float, float]


@dataclass(frozen=True)
class Anatomy:
    """Microseconds of one profiled step. `clock` says whose they are.

    "host": the work runs where it is launched, so the parts follow each other and add up to `total_us`. "device":
    replay, gaps, regions, staging and output are the device's, dispatch and launch the host's, and the two overlap.
    """

    clock: str
    total_us: float
    dispatch_us: float  # from the step's begin to the first launch, staging left out
    staging_us: float  # copies from host memory into the step's input buffers
    launch_us: float  # the host within graph launches; on the host's clock that is the replay itself, so 0
    replay_us: float  # recorded work
    gaps_us: float  # nothing runs between two pieces of recorded work
    regions_us: float  # eager work between two launches
    handoff_us: float  # of that, copies
    output_us: float  # everything after the last recorded work: logits and copies out

    def as_dict(self) -> dict[str, Any]:
        return {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(self).items()}


def anatomy_of(step: Callable[[], Any], graph_class: type, synchronize: Callable[[], None], gpu: bool) -> Anatomy:
    """Profile `step` once, from an idle device to an idle device. Never a timed step: a profile makes it slower."""
    synchronize()
    with (
        around_launches(graph_class, lambda graph: record_function(REPLAY)),
        _profiling(gpu) as profiler,
        record_function(STEP),
    ):
        step()
        synchronize()
    events = _events_of(profiler)
    return read_device(events) if gpu else read_host(events)


def read_host(events: Iterable[dict[str, Any]]) -> Anatomy:
    """Of a trace whose work ran on the host. Raises ValueError for one without the step's mark."""
    events = list(events)
    begin, end = _step(events)
    replays = _spans(event for event in events if event.get("name") == REPLAY)
    copies = _outside(_spans(event for event in events if event.get("name") == "aten::copy_"), replays)
    first = replays[0][0] if replays else end
    last = replays[-1][1] if replays else end
    staging = _sum(span for span in copies if span[1] <= first)
    handoff = _sum(span for span in copies if span[0] >= first and span[1] <= last)
    replay = _sum(replays)
    return Anatomy(
        clock="host",
        total_us=end - begin,
        dispatch_us=first - begin - staging,
        staging_us=staging,
        launch_us=0.0,
        replay_us=replay,
        gaps_us=0.0,
        regions_us=last - first - replay if replays else 0.0,
        handoff_us=handoff,
        output_us=end - last,
    )


def read_device(events: Iterable[dict[str, Any]]) -> Anatomy:
    """Of a trace with device work: a kernel belongs to a recording if it shares its launch's correlation."""
    events = list(events)
    begin, end = _step(events)
    launches = [event for event in events if _GRAPH_LAUNCH.match(str(event.get("name")))]
    ids = {_correlation(event) for event in launches} - {None}
    work = [event for event in events if event.get("cat") in _DEVICE]
    recorded = _spans(event for event in work if _correlation(event) in ids)
    other = [event for event in work if _correlation(event) not in ids]
    first_launch = min((float(event["ts"]) for event in launches), default=end)
    first = min((span[0] for span in recorded), default=float("inf"))
    last = max((span[1] for span in recorded), default=float("-inf"))
    between = _spans(event for event in other if first <= float(event["ts"]) < last)
    return Anatomy(
        clock="device",
        total_us=end - begin,
        dispatch_us=first_launch - begin,
        staging_us=_sum(_spans(e for e in other if float(e["ts"]) < first and e["cat"] == "gpu_memcpy")),
        launch_us=_sum(_spans(launches)),
        replay_us=_sum(_union(recorded)),
        gaps_us=max(0.0, last - first - _sum(_union([*recorded, *between]))) if recorded else 0.0,
        regions_us=_sum(_union(between)),
        handoff_us=_sum(_spans(e for e in other if first <= float(e["ts"]) < last and e["cat"] == "gpu_memcpy")),
        output_us=_sum(_union(_spans(event for event in other if float(event["ts"]) >= last))),
    )


def _step(events: Sequence[dict[str, Any]]) -> Span:
    spans = _spans(event for event in events if event.get("name") == STEP and event.get("cat") != "gpu_user_annotation")
    if not spans:
        raise ValueError(f"the profile holds no {STEP!r}: nothing can be said of where the step's time went")
    return spans[0]


def _correlation(event: dict[str, Any]) -> Any:
    return (event.get("args") or {}).get("correlation")


def _spans(events: Iterable[dict[str, Any]]) -> list[Span]:
    timed = [event for event in events if "dur" in event]
    return sorted((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in timed)


def _outside(spans: Iterable[Span], holders: Sequence[Span]) -> list[Span]:
    """Spans that none of `holders` holds, and that no other of them holds."""
    free = [span for span in spans if not any(low <= span[0] and span[1] <= high for low, high in holders)]
    return [a for a in free if not any(b != a and b[0] <= a[0] and a[1] <= b[1] for b in free)]


def _union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for low, high in sorted(spans):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _sum(spans: Iterable[Span]) -> float:
    return sum(high - low for low, high in spans)


@contextmanager
def _profiling(gpu: bool) -> Iterator[profile]:
    if gpu:
        from harness.engines.gpu_census import _profiled

        with _profiled() as profiler:
            yield profiler
        return
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        yield profiler


def _events_of(profiler: profile) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.json")
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events
