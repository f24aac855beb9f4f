"""Each replay kept a workspace in a list: 64 KiB a step, every gate green, and the server dead after an hour."""

from __future__ import annotations

import torch

from harness.engines.base import Arm, PadFill, StepBatch, StepResult
from harness.probes.base import ProbeResult
from harness.probes.retained import STEPS, RetainedProbe
from harness.records import Status
from suites.instrument.probe_bench import context_of, failed, gate
from suites.instrument.toy_session import ToySession, one_thread


class Keeping(ToySession):
    """Keeps a tensor of 4 KiB of each step for `lifetime` steps; a cycle or a fixed cache on request."""

    lifetime = 10**9
    cyclic = False

    def step(self, batch: StepBatch, arm: Arm, *, rows: int | None = None, pad: PadFill = PadFill.ENGINE) -> StepResult:
        kept: list[object] = self.__dict__.setdefault("kept", [])
        made: list[object] = [torch.empty(1024)]
        if self.cyclic:
            made.append(made)
        else:
            kept.append(made)
        del kept[: -self.lifetime]
        return super().step(batch, arm, rows=rows, pad=pad)


class KeepingTwenty(Keeping):
    lifetime = 5


class Cyclic(Keeping):
    cyclic = True


def measured(session: type[ToySession]) -> ProbeResult:
    with one_thread():
        return RetainedProbe().run(context_of(session))


def test_a_tensor_kept_by_each_step_is_found_to_the_byte_with_its_shape() -> None:
    found = gate(measured(Keeping), "memory.steps")
    assert found.status is Status.FAIL
    assert found.measured == 4096.0
    assert f"{STEPS} steps of size 1 left {4096 * STEPS} bytes behind, 4096 a step" in found.message
    assert f"{STEPS} x float32 (1024,) on cpu" in found.message


def test_a_clean_session_leaves_not_one_byte() -> None:
    result = measured(ToySession)
    assert failed(result) == set()
    assert result.counters["memory.steps"]["bytes"] == {size: {"host": 0, "device": 0} for size in "124"}


def test_a_cache_that_is_full_after_some_steps_is_no_leak() -> None:
    assert failed(measured(KeepingTwenty)) == set()


def test_a_cycle_is_late_and_not_lost() -> None:
    assert failed(measured(Cyclic)) == set()
