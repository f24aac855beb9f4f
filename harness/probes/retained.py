"""What steps leave behind: after a soak of replays the process holds not one byte more than before.

A workspace kept in a list by each replay is 64 KiB a step: every gate of a sign-off was green, and the server died
after an hour. Every allocation and release of torch's allocators passes torch's profiler, so their sum is exact.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from harness.engines.base import Arm, StepBatch
from harness.probes.base import ProbeContext, ProbeResult
from harness.probes.gates import compared_nothing, judged
from harness.probes.latency import full_batches
from harness.records import GateResult, Phase

STEPS = 4
GATE = "memory.steps"
_QUIET = {"KINETO_LOG_LEVEL": "99", "TEARDOWN_CUPTI": "1"}  # a profiler left attached slows every later replay


@dataclass(frozen=True)
class Growth:
    """Bytes that a soak left allocated, and the tensors that appeared meanwhile, by shape and type."""

    host: int
    device: int
    tensors: Mapping[str, int]

    @property
    def total(self) -> int:
        return max(self.host, 0) + max(self.device, 0)


class RetainedProbe:
    """Drives arm R only. It profiles, so it belongs after everything that is timed."""

    name = "memory.steps"

    def run(self, context: ProbeContext) -> ProbeResult:
        context.enter(Phase.REPLAY)
        with torch.inference_mode():
            batches = dict(full_batches(context))
            clean = _soak(context, list(batches.values()))
            # One look at all sizes together is enough where nothing stayed; else each is looked at by itself.
            found = {size: _soak(context, [batch]) if clean.total else clean for size, batch in batches.items()}
            if clean.total and not any(growth.total for growth in found.values()):
                found = {max(batches): clean}  # it takes the change from one size to another
        kept = {str(size): {"host": growth.host, "device": growth.device} for size, growth in found.items()}
        return ProbeResult(gates=[_gate(found)], counters={GATE: {"steps": STEPS, "bytes": kept}})


def _soak(context: ProbeContext, batches: Sequence[StepBatch]) -> Growth:
    """A second soak decides: what the first one leaves may be a cache that is full from then on."""
    session = context.session

    def steps() -> None:
        for _ in range(STEPS):
            for batch in batches:
                session.step(batch, Arm.R)
        session.synchronize()

    for batch in batches:
        session.step(batch, Arm.R)
    first = growth_of(steps, context.device)
    return growth_of(steps, context.device) if first.total else first


def growth_of(run: Callable[[], None], device: str) -> Growth:
    """What is still allocated after `run` of what it allocated. Cycles are collected: they are late, not lost."""
    on_gpu = device == "cuda"
    gc.collect()
    before, device_before = _tensors(), torch.cuda.memory_allocated() if on_gpu else 0
    with _environment(_QUIET), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
        gc.collect()
    device_bytes = (torch.cuda.memory_allocated() if on_gpu else 0) - device_before
    events = profiler.profiler.kineto_results.events() if profiler.profiler is not None else []
    host = sum(e.nbytes() for e in events if e.name() == "[memory]" and e.device_type() == DeviceType.CPU)
    return Growth(host, device_bytes, _tensors() - before)


def _gate(found: Mapping[int, Growth]) -> GateResult:
    if not found:
        return compared_nothing(GATE, "no step was soaked")
    leaks = {size: growth for size, growth in found.items() if growth.total}
    if not leaks:
        message = f"{STEPS} steps of each of {len(found)} sizes left no byte behind"
        return judged(GATE, True, message, measured=0.0, threshold=0.0)
    size, growth = next(iter(leaks.items()))
    where = " and ".join(
        f"{n} of the {what}" for what, n in (("host", growth.host), ("device", growth.device)) if n > 0
    )
    shown = ", ".join(f"{count} x {text}" for text, count in Counter(growth.tensors).most_common(3))
    message = (
        f"{STEPS} steps of size {size} left {growth.total} bytes behind, {growth.total / STEPS:g} a step ({where})"
        f"{f': new tensors {shown}' if shown else ', held by no Python tensor'}; {len(leaks)} of {len(found)} sizes; "
        "likely CAPCOST: something keeps a tensor of every step"
    )
    most = max(growth.total for growth in leaks.values()) / STEPS
    return judged(GATE, False, message, measured=most, threshold=0.0, where=f"size {size}")


def _tensors() -> Counter[str]:
    """Every tensor that Python holds, by type, shape and place."""
    return Counter(
        f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)} on {each.device.type}"
        for each in gc.get_objects()
        if issubclass(type(each), torch.Tensor) and each.layout is torch.strided
    )


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
