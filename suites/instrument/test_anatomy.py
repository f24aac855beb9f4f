"""A step that became slower says so; which part of it did, nobody could tell. The parts are read from a profile, and
here the profiles are written by hand, so that the truth is known.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.engines.anatomy import REPLAY, STEP, Anatomy, anatomy_of, read_device, read_host
from harness.probes.anatomy import AnatomyProbe, sentence
from harness.records import Status
from suites.instrument.probe_bench import context_of, gate
from suites.instrument.toy_session import ToySession


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", correlation: int | None = None) -> dict[str, Any]:
    return {"name": name, "ts": ts, "dur": dur, "cat": cat, "args": {"correlation": correlation}}


HOST = [
    event(STEP, 1000, 100, "user_annotation"),
    event("aten::copy_", 1005, 4),
    event("aten::copy_", 1006, 2),  # nested in the one before
    event(REPLAY, 1020, 30, "user_annotation"),
    event("aten::copy_", 1030, 5),  # recorded work
    event("aten::mm", 1050, 8),
    event("aten::copy_", 1058, 2),  # hand-off
    event(REPLAY, 1060, 20, "user_annotation"),
    event("aten::copy_", 1090, 3),  # output
]


def test_on_a_host_the_parts_follow_each_other_and_add_up() -> None:
    found = read_host(HOST)
    assert found == Anatomy("host", 100, 16, 4, 0, 50, 0, 10, 2, 20)
    assert found.dispatch_us + found.staging_us + found.replay_us + found.regions_us + found.output_us == found.total_us


def test_a_step_that_replays_nothing_is_all_dispatch_and_staging() -> None:
    found = read_host([entry for entry in HOST if entry["name"] != REPLAY])
    assert found.replay_us == found.regions_us == found.output_us == 0
    assert found.dispatch_us + found.staging_us == found.total_us


DEVICE = [
    event(STEP, 1000, 200, "user_annotation"),
    event(STEP, 1010, 180, "gpu_user_annotation"),
    event("cudaMemcpyAsync", 1002, 2, "cuda_runtime", 1),
    event("Memcpy HtoD (Pinned -> Device)", 1006, 3, "gpu_memcpy", 1),
    event("cudaGraphLaunch", 1010, 5, "cuda_runtime", 2),
    event("gemm", 1020, 30, "kernel", 2),
    event("norm", 1050, 10, "kernel", 2),
    event("cudaLaunchKernel", 1030, 1, "cuda_runtime", 3),
    event("attention", 1065, 15, "kernel", 3),
    event("Memcpy DtoD (Device -> Device)", 1080, 2, "gpu_memcpy", 4),
    event("cudaGraphLaunch", 1040, 5, "cuda_runtime", 5),
    event("gemm", 1085, 35, "kernel", 5),
    event("logits", 1122, 20, "kernel", 6),
    event("Memcpy DtoH (Device -> Pinned)", 1150, 4, "gpu_memcpy", 7),
]


def test_on_a_device_a_kernel_belongs_to_the_launch_that_it_correlates_with() -> None:
    found = read_device(DEVICE)
    assert found == Anatomy(
        clock="device",
        total_us=200,
        dispatch_us=10,
        staging_us=3,
        launch_us=10,
        replay_us=75,
        gaps_us=8,  # 1060 to 1065 and 1082 to 1085
        regions_us=17,
        handoff_us=2,
        output_us=24,
    )


def test_rocm_spells_its_launches_differently() -> None:
    renamed = [{**entry, "name": str(entry["name"]).replace("cudaGraph", "hipGraph")} for entry in DEVICE]
    assert read_device(renamed) == read_device(DEVICE)


def test_a_profile_without_the_step_says_nothing() -> None:
    with pytest.raises(ValueError, match=r"holds no 'harness\.step'"):
        read_host([event("aten::mm", 0, 1)])


class Graph:
    """A graph whose replay is one product."""

    def replay(self) -> None:
        x = torch.ones(200, 200)
        x @ x


def test_a_real_step_is_taken_apart_and_the_graph_class_is_as_before() -> None:
    before = Graph.replay
    target = torch.empty(1000)

    def step() -> None:
        target.copy_(torch.ones(1000))
        Graph().replay()
        torch.ones(300, 300) @ torch.ones(300, 300)
        Graph().replay()

    found = anatomy_of(step, Graph, lambda: None, gpu=False)
    assert Graph.replay is before
    assert found.clock == "host"
    parts = (found.dispatch_us, found.staging_us, found.replay_us, found.regions_us, found.output_us)
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(found.total_us, rel=1e-6)


def test_an_engine_whose_steps_cannot_be_taken_apart_says_so() -> None:
    found = gate(AnatomyProbe().run(context_of(ToySession, input_sets=2)), "anatomy")
    assert found.status is Status.NOT_APPLICABLE


def test_the_sentence_leaves_out_what_took_no_time() -> None:
    assert sentence(4, read_host(HOST)) == (
        "one profiled step at bucket 4 takes 100 us by the host's clock: "
        "dispatch 16, staging 4, replay 50, regions 10, output 20"
    )
