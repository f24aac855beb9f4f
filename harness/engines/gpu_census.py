"""A step's device work on a GPU, from a profile of it and from the nodes of the graphs that it launched.

Operators say nothing about a replay: on a GPU the recorded work is visible only as graph nodes, and as the kernels and
memory copies that the device reports. An environment variable once switched graphs off; zero graph launches in a
profile were the only trace of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from harness.engines.census import Boundary, Census, Tally, watching_launches
from harness.engines.gpu_pools import watching_pools
from harness.engines.observed import Observed, ObservedCopy, Place

#: Names of the CUDA and HIP runtimes; both appear in their own spelling.
_GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")
_WORK = re.compile(r"^(cuda|hip|cu)\w*(Launch\w*Kernel|Memcpy|Memset)")
#: A driver runs the copies and fills of a graph by kernels of its own where it finds that faster.
_COPY_KERNEL = re.compile(r"^(memcpy\d+\w*|__amd_rocclr_copyBuffer\w*)$")
_FILL_KERNEL = re.compile(r"^(memset\d+\w*|__amd_rocclr_fillBuffer\w*)$")
_MEMCPY_NODE = 1  # cudaGraphNodeTypeMemcpy, hipGraphNodeTypeMemcpy
_HOST_COPIES = (1, 2)  # cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost; HIP numbers them alike


@dataclass(frozen=True)
class NodeCopy:
    """A copy within the device's memory that a graph records."""

    target: int
    bytes: int


@dataclass(frozen=True)
class Trace:
    """What the profiler saw of a step. `copies` are (direction, bytes), the direction as in "HtoD"; `copy_kernels` are
    copies of a graph that the driver ran by a kernel, so that the profiler knows no bytes.
    """

    launches: int
    regions: int
    kernels: Counter[str]
    copies: list[tuple[str, int]]
    copy_kernels: int = 0


def observe_gpu(step: Callable[[], Any], boundary: Boundary) -> Observed:
    """Run `step` once under the profiler and count what the device did. `step` returns a `StepResult`."""
    tally = Tally(boundary)
    torch.cuda.synchronize()
    with (
        watching_pools(boundary.pools) as pool_use,
        watching_launches(boundary.graph_class, tally.launch),
        Census(tally),
        _profiled() as profiler,
    ):
        claim = step().claim
        torch.cuda.synchronize()
    trace = read_trace(_events_of(profiler))
    nodes = [node for graph in tally.launched for node in _nodes_of(graph.raw_cuda_graph())]
    recorded = [copy for node in nodes if (copy := _copy_of(node)) is not None]
    return Observed(
        claim=claim,
        launches=trace.launches,
        regions=trace.regions,
        nodes=len(nodes),
        operations=dict(trace.kernels),
        copies=tuple(placed(trace, recorded, tally.outputs)),
        needless=tuple(tally.needless),
        pool_use=pool_use(),
    )


def read_trace(events: Iterable[dict[str, Any]]) -> Trace:
    """Read the events of a Chrome trace; those of the host are ordered by their begin."""
    kernels: Counter[str] = Counter()
    copies: list[tuple[str, int]] = []
    calls: list[tuple[float, bool]] = []
    for event in events:
        category, name = event.get("cat"), str(event.get("name"))
        if category in ("kernel", "gpu_memset"):
            kernels[_kernel_name(category, name)] += 1
        elif category == "gpu_memcpy":
            copies.append((_direction(name), int(event["args"]["bytes"])))
        elif category in ("cuda_runtime", "cuda_driver") and (_GRAPH_LAUNCH.match(name) or _WORK.match(name)):
            calls.append((event["ts"], bool(_GRAPH_LAUNCH.match(name))))
    order = [launch for _, launch in sorted(calls)]
    return Trace(sum(order), _gaps(order), kernels, copies, kernels.pop("Memcpy", 0))


def placed(trace: Trace, recorded: Sequence[NodeCopy], outputs: Sequence[tuple[int, int]]) -> Iterator[ObservedCopy]:
    """Every copy of the profile with its place. Where a recorded one lands, and its bytes, are read from its node."""
    left, kernels = Counter(trace.copies), trace.copy_kernels
    # A size of which the device reports fewer copies than there are nodes was copied by kernels.
    short = Counter(node.bytes for node in recorded)
    short.subtract({nbytes: count for (direction, nbytes), count in left.items() if direction == "DtoD"})
    for node in sorted(recorded, key=lambda node: short[node.bytes] <= 0):
        inside = any(low <= node.target and node.target + node.bytes <= high for low, high in outputs)
        if kernels:
            kernels -= 1
        elif left["DtoD", node.bytes] > 0:
            left["DtoD", node.bytes] -= 1
        else:
            continue  # a node that the device did not run is no copy
        yield ObservedCopy("Memcpy DtoD", node.bytes, Place.OUTPUT if inside else Place.DEVICE, recorded=True)
    left["DtoD", 0] += kernels
    for (direction, nbytes), count in left.items():
        place = Place.STAGING if direction == "HtoD" else Place.DEVICE
        yield from [ObservedCopy(f"Memcpy {direction}", nbytes, place)] * count


def _kernel_name(category: str, name: str) -> str:
    """The kernel's own name, or "Memcpy" and "Memset" for the driver's."""
    if category == "gpu_memset" or _FILL_KERNEL.match(name):
        return "Memset"
    return "Memcpy" if _COPY_KERNEL.match(name) else name


def _gaps(order: Sequence[bool]) -> int:
    """Stretches of other work between two graph launches; `order` is true for a launch."""
    gaps, worked, seen = 0, False, False
    for launch in order:
        if launch:
            gaps += worked and seen
            seen, worked = True, False
        else:
            worked = True
    return gaps


def _direction(name: str) -> str:
    """ "HtoD" of "Memcpy HtoD (Pinned -> Device)"; HIP writes "CopyHostToDevice"."""
    plain = name.replace("HostToDevice", "HtoD").replace("DeviceToDevice", "DtoD").replace("DeviceToHost", "DtoH")
    found = re.search(r"[HD]to[HD]", plain)
    return found.group() if found else name


@contextmanager
def _profiled() -> Iterator[profile]:
    """A profile that is gone when it ends: left attached, CUPTI made every later replay of the process 15 % slower."""
    before = os.environ.get("TEARDOWN_CUPTI")
    os.environ["TEARDOWN_CUPTI"] = "1"
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
            yield profiler
    finally:
        if before is None:
            del os.environ["TEARDOWN_CUPTI"]
        else:
            os.environ["TEARDOWN_CUPTI"] = before


def _events_of(profiler: profile) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.json")
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


class _Pitched(ctypes.Structure):
    _fields_ = [
        ("ptr", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
        ("xsize", ctypes.c_size_t),
        ("ysize", ctypes.c_size_t),
    ]


class _Memcpy3D(ctypes.Structure):
    """cudaMemcpy3DParms; hipMemcpy3DParms is laid out alike."""

    _fields_ = [
        ("src_array", ctypes.c_void_p),
        ("src_pos", ctypes.c_size_t * 3),
        ("src", _Pitched),
        ("dst_array", ctypes.c_void_p),
        ("dst_pos", ctypes.c_size_t * 3),
        ("dst", _Pitched),
        ("extent", ctypes.c_size_t * 3),
        ("kind", ctypes.c_int),
    ]


@cache
def _runtime() -> tuple[ctypes.CDLL, str]:
    """The CUDA or HIP runtime that torch has loaded, and its function prefix."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.search(r"(/\S*lib(cudart|amdhip64)[^/\s]*\.so[^/\s]*)$", line)
        if match:
            return ctypes.CDLL(match.group(1)), "cuda" if match.group(2) == "cudart" else "hip"
    raise RuntimeError("neither libcudart nor libamdhip64 is loaded in this process; is this a GPU build of torch?")


def _call(name: str, *args: Any) -> None:
    library, prefix = _runtime()
    status = getattr(library, prefix + name)(*args)
    if status != 0:
        raise RuntimeError(f"{prefix}{name} failed with status {status}")


def _nodes_of(raw_graph: int) -> list[int]:
    graph, count = ctypes.c_void_p(raw_graph), ctypes.c_size_t(0)
    _call("GraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    _call("GraphGetNodes", graph, nodes, ctypes.byref(count))
    return [int(node) for node in nodes if node]


def _copy_of(node: int) -> NodeCopy | None:
    """The copy within device memory that this node makes, if it makes one."""
    kind = ctypes.c_int(0)
    _call("GraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
    if kind.value != _MEMCPY_NODE:
        return None
    params = _Memcpy3D()
    _call("GraphMemcpyNodeGetParams", ctypes.c_void_p(node), ctypes.byref(params))
    if params.kind in _HOST_COPIES:
        return None
    width, height, depth = params.extent
    return NodeCopy(params.dst.ptr or 0, width * max(height, 1) * max(depth, 1))
