"""Guards against an auditor that misses work, invents it, or leaves its hooks behind in what is timed next."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_impl.device.software import SoftwareGraph, host
from atom_impl.device.software.host import is_host
from harness.engines.census import Boundary, keeps_layout, observe
from harness.engines.gpu_census import NodeCopy, Trace, placed, read_trace
from harness.engines.observed import Observed, ObservedCopy, Place
from harness.probes import audit_rules
from harness.probes.audit_rules import Audited


def counted(step: Any, *outputs: torch.Tensor) -> Observed:
    """`step()` counted on the CPU; it may launch software graphs."""

    def run() -> Any:
        step()
        return SimpleNamespace(claim={})

    boundary = Boundary(
        graph_class=SoftwareGraph,
        recorded=lambda graph: graph.entries(),
        body_of=lambda op: None,
        is_host=lambda tensor: is_host(tensor.untyped_storage()),
        outputs=outputs,
    )
    with torch.inference_mode():
        return observe(run, boundary)


def test_views_empty_buffers_and_host_work_are_no_device_work() -> None:
    x, staged = torch.ones(4, 4), host(torch.ones(4))

    def step() -> None:
        x.view(16).unsqueeze(0).expand(3, 16)
        torch.empty_like(x)
        x.reshape(2, 8).contiguous().to(torch.float32)
        torch.promote_types(torch.float32, torch.bfloat16)
        staged + 1

    seen = counted(step)
    assert (seen.operations, seen.copies) == ({}, ())


def test_copies_are_told_by_where_they_land() -> None:
    device, out, staged = torch.ones(4), torch.zeros(8), host(torch.ones(4))

    def step() -> None:
        device.copy_(staged)
        out[2:6].copy_(device)
        device.clone()
        torch.add(device, 1)

    seen = counted(step, out)
    assert [(copy.op, copy.bytes, copy.place) for copy in seen.copies] == [
        ("aten::copy_", 16, Place.STAGING),
        ("aten::copy_", 16, Place.OUTPUT),
        ("aten::clone", 16, Place.DEVICE),
    ]
    assert seen.operations == {"aten::add": 1}
    assert all(copy.site.startswith("test_census.py:") and copy.site.endswith("in step") for copy in seen.copies)
    assert seen.sites["aten::add"].startswith("test_census.py:")


def recorded(x: torch.Tensor, out: torch.Tensor) -> SoftwareGraph:
    graph = SoftwareGraph()
    with torch.inference_mode():
        graph.capture_begin()
        out.copy_((x * 2).clone())
        graph.capture_end()
    return graph


def test_a_launched_graph_counts_as_often_as_it_is_launched_with_the_eager_work_between() -> None:
    x, out = torch.ones(4), torch.zeros(4)
    graph = recorded(x, out)

    def step() -> None:
        graph.replay()
        x.add_(1)
        x.mul_(2)
        graph.replay()
        graph.replay()
        x.add_(1)

    seen = counted(step, out)
    assert (seen.launches, seen.regions, seen.nodes) == (3, 1, 9)
    assert seen.operations == {"aten::mul": 3, "aten::add_": 2, "aten::mul_": 1}
    assert seen.landed(Place.OUTPUT) == (3, 48)
    assert len(seen.needless) == 3
    assert all(copy.recorded for copy in seen.copies)


def test_the_count_leaves_nothing_behind_even_when_the_step_raises() -> None:
    before = SoftwareGraph.replay

    def step() -> None:
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        counted(step)
    assert SoftwareGraph.replay is before
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_kernels_that_inductor_generated_are_counted_and_put_back() -> None:
    from torch._inductor.codecache import PyCodeCache

    fused = torch.compile(lambda x: (x * 2 + 1).relu(), fullgraph=True)
    x = torch.ones(64)
    with torch.inference_mode():
        fused(x)
    globals_before = [dict(vars(module)) for module in PyCodeCache.modules]
    seen = counted(lambda: fused(x))
    assert [count for name, count in seen.operations.items() if name.startswith("cpp_fused")] == [1]
    assert [dict(vars(module)) for module in PyCodeCache.modules] == globals_before


@pytest.mark.parametrize(
    ("tensor", "layout", "kept"),
    [
        (torch.ones(3, 4), None, True),
        (torch.ones(3, 4).t(), None, True),
        (torch.ones(3, 4).t(), torch.contiguous_format, False),
        (torch.ones(3, 4)[:, :2], None, False),
        (torch.ones(1, 4).expand(3, 4), None, False),
        (torch.ones(3, 4), torch.contiguous_format, True),
    ],
)
def test_a_clone_is_needless_where_it_keeps_the_layout(
    tensor: torch.Tensor, layout: torch.memory_format | None, kept: bool
) -> None:
    assert keeps_layout(tensor, layout) is kept


def event(category: str, name: str, at: float = 0.0, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": at, "args": args}


def test_a_cuda_profile_is_read_as_launches_gaps_kernels_and_copies() -> None:
    trace = read_trace(
        [
            event("cuda_runtime", "cudaMemcpyAsync", 1),
            event("cuda_runtime", "cudaGraphLaunch", 2),
            event("cuda_driver", "cuLaunchKernelEx", 3),
            event("cuda_runtime", "cudaLaunchKernel", 4),
            event("cuda_runtime", "cudaStreamIsCapturing", 5),
            event("cuda_runtime", "cudaGraphLaunch", 6),
            event("cuda_runtime", "cudaGraphLaunch", 7),
            event("kernel", "gemm", 8),
            event("kernel", "gemm", 9),
            event("gpu_memset", "Memset (Device)", 9),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1, bytes=32),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 9, bytes=64),
            {"name": "process_name", "ph": "M"},
        ]
    )
    assert (trace.launches, trace.regions) == (3, 1)
    assert trace.kernels == Counter({"gemm": 2, "Memset": 1})
    assert trace.copies == [("HtoD", 32), ("DtoD", 64)]


def test_a_hip_profile_is_read_by_the_names_of_its_runtime() -> None:
    trace = read_trace(
        [
            event("cuda_runtime", "hipMemcpyWithStream", 1),
            event("cuda_runtime", "hipGraphLaunch", 2),
            event("cuda_runtime", "hipExtModuleLaunchKernel", 3),
            event("cuda_runtime", "hipGraphLaunch", 4),
            event("gpu_memcpy", "CopyHostToDevice", 1, bytes=8),
        ]
    )
    assert (trace.launches, trace.regions, trace.copies) == (2, 1, [("HtoD", 8)])


def seen_at(trace: Trace, *nodes: NodeCopy) -> Counter[tuple[Place, int, bool]]:
    copies = placed(trace, nodes, outputs=[(1000, 2000)])
    return Counter((copy.place, copy.bytes, copy.recorded) for copy in copies)


def test_a_recorded_copy_lands_where_its_node_says_and_counts_only_if_the_device_made_it() -> None:
    trace = Trace(1, 0, Counter(), [("HtoD", 32), ("DtoD", 64), ("DtoD", 64), ("DtoD", 16)])
    nodes = [NodeCopy(target=1000, bytes=64), NodeCopy(target=9000, bytes=16), NodeCopy(target=1000, bytes=128)]
    assert seen_at(trace, *nodes) == {
        (Place.OUTPUT, 64, True): 1,
        (Place.DEVICE, 16, True): 1,
        (Place.STAGING, 32, False): 1,
        (Place.DEVICE, 64, False): 1,
    }


def test_a_recorded_copy_that_the_driver_ran_by_a_kernel_is_still_that_copy() -> None:
    kernels = [event("kernel", "memcpy32_post"), event("kernel", "memset32_post"), event("kernel", "gemm")]
    trace = read_trace([*kernels, event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", bytes=64)])
    assert trace.kernels == {"Memset": 1, "gemm": 1}
    recorded, eager = (Place.OUTPUT, 64, True), (Place.DEVICE, 64, False)
    assert seen_at(trace, NodeCopy(1000, 64)) == {recorded: 1, eager: 1}
    assert seen_at(trace, NodeCopy(9000, 64), NodeCopy(1000, 16)) == {
        (Place.OUTPUT, 16, True): 1,
        (Place.DEVICE, 64, True): 1,
    }


def test_a_copy_kernel_that_no_graph_recorded_is_a_copy_of_unknown_size() -> None:
    assert seen_at(Trace(1, 0, Counter(), [], copy_kernels=1)) == {(Place.DEVICE, 0, False): 1}


def step_of(claim: dict[str, Any] | None = None, **seen: Any) -> Audited:
    """A replayed step beside a plain one that did one `aten::add` and made one copy of 64 bytes."""
    copy = ObservedCopy("aten::copy_", 64, Place.DEVICE, "llama.py:10 in forward")
    plain = Observed({}, 0, 0, 0, {"aten::add": 1}, (copy,))
    said = {"segments": 1, "regions": 0, "requested_mode": "FULL", "effective_mode": "FULL", "copies": {}}
    counts: dict[str, Any] = {"launches": 1, "regions": 0, "nodes": 2, "operations": {"aten::add": 1}}
    replay = Observed(said | (claim or {}), **(counts | {"copies": (copy,)} | seen))
    return Audited(replay, plain, mode="FULL", bucket=1, nodes=2)


PLAIN = ObservedCopy("aten::copy_", 64, Place.DEVICE, "llama.py:10 in forward")
STRAY = ObservedCopy("aten::copy_", 64, Place.DEVICE, "llama.py:99 in forward")


def test_the_copy_that_is_left_over_is_named_by_its_own_place() -> None:
    (text,) = audit_rules.copies(step_of(copies=(STRAY, PLAIN)))
    assert "1 device copy beyond the plain step's" in text
    assert "llama.py:99" in text


def test_a_hand_off_that_is_claimed_is_no_stray_copy_and_one_that_is_not_made_is_missed() -> None:
    claim = {"copies": {"handoff": {"count": 1, "bytes": 64}}}
    assert audit_rules.copies(step_of(claim, copies=(STRAY, PLAIN))) == []
    (text,) = audit_rules.copies(step_of(claim))
    assert "1 copies of 64 bytes claimed and 0 made" in text


def test_a_copy_of_the_plain_step_that_the_replay_drops_is_missed() -> None:
    (text,) = audit_rules.copies(step_of(copies=()))
    assert "1 device copy of the plain step not made in the replay" in text


def test_a_rewritten_tail_must_be_claimed_as_padding() -> None:
    filled = {"operations": {"aten::add": 1, "aten::zero_": 1}}
    assert audit_rules.operations(step_of({"copies": {"padding": {"count": 1, "bytes": 8}}}, **filled)) == []
    assert "0 rewritten tails claimed and 1 fills" in audit_rules.operations(step_of(**filled))[0]
    (text,) = audit_rules.operations(step_of({"copies": {"padding": {"count": 1, "bytes": 8}}}))
    assert "1 rewritten tails claimed and 0 fills" in text


def test_regions_without_a_segment_between_them_may_look_like_one() -> None:
    assert audit_rules.regions(step_of({"segments": 2, "regions": 3}, regions=1)) == []
    assert audit_rules.regions(step_of({"segments": 2, "regions": 1}, regions=0))
    assert audit_rules.regions(step_of({"segments": 2, "regions": 0}, regions=1))
