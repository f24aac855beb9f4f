"""On the device under test, a GPU above all: an event on another stream and a sensor of another GPU read well, and
say nothing. What the other files try with clocks and libraries made up is tried here with the real ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from harness.cells import Cell
from harness.engines.base import EngineSession, Phase, SessionSpec, StepBatch
from harness.execution.slots import slots_of
from harness.plugins import find_engine
from harness.probes.calibration import calibrations
from harness.timing.bandwidth import bandwidth_bytes_s
from harness.timing.conditions import watch_for


@pytest.fixture(scope="module")
def session(device: str) -> Iterator[EngineSession]:
    cell = Cell.of(model="random:tiny-llama", mode="FULL", ladder=[1, 2, 4])
    spec = SessionSpec("float32", device, max_num_seqs=4, max_model_len=64, block_size=16, num_blocks=32)
    opened = find_engine("atom_impl").open(cell, spec)
    opened.capture()
    yield opened
    opened.close()


def test_every_timer_of_the_device_is_right_by_the_sessions_own_synchronisation(
    device: str, session: EngineSession
) -> None:
    found = calibrations(device, session.synchronize, time.perf_counter_ns)
    assert [entry.name for entry in found] == ["host clock"] + ["device events"] * (device == "cuda")
    assert all(entry.ok for entry in found), [str(entry) for entry in found]


def test_a_session_that_does_not_wait_is_refused_on_this_device(device: str) -> None:
    if device == "cuda":
        host = calibrations(device, lambda: None, time.perf_counter_ns)[0]
        assert not host.ok, str(host)
        torch.cuda.synchronize()
    else:  # the stand-in is waited for beside the session, so what is broken here is the clock
        assert not calibrations(device, lambda: None, lambda: 0)[0].ok


def test_a_step_is_taken_apart_on_this_device(device: str, session: EngineSession) -> None:
    batch = StepBatch(Phase.DECODE, ((1,), (2,), (3,)), (4, 5, 6), ((0,), (1,), (2,)))
    with torch.inference_mode():
        found = session.anatomy(batch)
    assert found is not None
    assert found.clock == ("device" if device == "cuda" else "host")
    assert found.replay_us > 0
    assert found.dispatch_us > 0
    assert found.output_us > 0
    assert found.total_us >= found.dispatch_us + found.launch_us
    if device == "cuda":
        assert found.launch_us > 0
        assert found.staging_us > 0


def test_the_device_says_how_it_is_and_how_fast_its_memory_is(device: str) -> None:
    reading = watch_for(device).read()
    assert bool(reading.gpu) is (device == "cuda")
    assert bandwidth_bytes_s(device) > (1e11 if device == "cuda" else 1e8)


def test_each_device_is_a_slot_of_its_own(device: str) -> None:
    slots = slots_of(device)
    assert len({slot.name for slot in slots}) == len(slots) == (torch.cuda.device_count() if device == "cuda" else 1)
    if device == "cuda":
        assert all(slot.is_gpu for slot in slots)
