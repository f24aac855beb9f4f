"""Faults put into an opened session from outside, each the smallest of its kind: what the instrument must not miss.

They act where an engine meets the harness, so no check can know them by name, and the engine's own code stays as it is.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import torch

from harness.engines.base import Arm, EngineSession, StepBatch, StepResult

Step = Callable[..., StepResult]
#: What the slower step adds, as a share of it, by the kind of device: what each must be able to tell from nothing.
SLOWER_BY = {"cpu": 0.05, "cuda": 0.01}


def slower_step(step: Step, chooser: random.Random) -> Step:
    """Every replayed step takes longer, from an idle device to an idle one, by `SLOWER_BY`."""

    def slower(batch: StepBatch, arm: Arm, **more: Any) -> StepResult:
        begun = time.perf_counter()
        result = step(batch, arm, **more)
        if arm is Arm.R:
            device = result.hidden.device
            if device.type == "cuda":  # the call returns while the kernels still run
                torch.cuda.synchronize(device)
            end = begun + (time.perf_counter() - begun) * (1 + SLOWER_BY[device.type])
            while time.perf_counter() < end:
                pass
        return result

    return slower


def extra_copy(step: Step, chooser: random.Random) -> Step:
    """Each replayed step copies its output once more; no value changes and the ledger says nothing."""

    def copies(batch: StepBatch, arm: Arm, **more: Any) -> StepResult:
        result = step(batch, arm, **more)
        if arm is Arm.R:
            result.hidden.copy_(result.hidden.clone())
        return result

    return copies


def dropped_graph(step: Step, chooser: random.Random) -> Step:
    """One batch size is computed without its recording, and the claim goes on saying that it was replayed."""
    claims: dict[int, Any] = {}
    victim: list[int] = []

    def eager(batch: StepBatch, arm: Arm, **more: Any) -> StepResult:
        rows = batch.rows
        if arm is not Arm.R:
            return step(batch, arm, **more)
        if rows not in claims:
            result = step(batch, arm, **more)
            claims[rows] = dict(result.claim)
            if result.claim.get("segments") and (not victim or chooser.random() < 0.3):
                victim[:] = [rows]
            return result
        if victim != [rows]:
            return step(batch, arm, **more)
        bucket = claims[rows].get("bucket")
        return dataclasses.replace(step(batch, Arm.C, rows=bucket), claim=claims[rows])

    return eager


def flipped_bit(step: Step, chooser: random.Random) -> Step:
    """In one replayed step in four, the lowest bit of one value of one live row."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}

    def flips(batch: StepBatch, arm: Arm, **more: Any) -> StepResult:
        result = step(batch, arm, **more)
        if arm is Arm.R and chooser.random() < 0.25:
            row, column = (chooser.randrange(size) for size in result.hidden.shape)
            bits = result.hidden[row].view(integer[result.hidden.element_size()])
            bits[column] ^= 1
        return result

    return flips


def recompile(step: Step, chooser: random.Random) -> Step:
    """One replayed step compiles something anew, behind the engine's back: a shape that a guard did not know."""
    compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled(torch.zeros(1))
    left = [chooser.randrange(1, 8)]

    def compiles(batch: StepBatch, arm: Arm, **more: Any) -> StepResult:
        result = step(batch, arm, **more)
        if arm is Arm.R:
            left[0] -= 1
            if left[0] == 0:
                compiled(torch.zeros(chooser.randrange(2, 1000)))
        return result

    return compiles


def stale_buffer(step: Step, chooser: random.Random) -> Step:
    """A replayed step returns what the last one of its shape left in the output."""
    last: dict[tuple[int, ...], torch.Tensor] = {}

    def stale(batch: StepBatch, arm: Arm, **more: Any) -> StepResult:
        result = step(batch, arm, **more)
        if arm is Arm.R:
            shape = tuple(result.hidden.shape)
            before, last[shape] = last.get(shape), result.hidden.clone()
            if before is not None:
                result.hidden.copy_(before)
        return result

    return stale


FAULTS: dict[str, Callable[[Step, random.Random], Step]] = {
    "slower step": slower_step,
    "extra copy": extra_copy,
    "dropped graph": dropped_graph,
    "recompile": recompile,
    "flipped bit": flipped_bit,
    "stale buffer": stale_buffer,
}


def put_into(session: EngineSession, fault: str, seed: int) -> None:
    """Let `session` have the fault from now on, in everything that calls its `step`. Raises KeyError if unknown."""
    step = FAULTS[fault](session.step, random.Random(seed))
    session.step = step  # type: ignore[method-assign]
