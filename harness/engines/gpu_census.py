"""A step's device work on a GPU, from a profile of it and from the nodes of the graphs that it launched.

Operators say nothing about a replay: on a GPU the recorded work is visible only as graph nodes, and as the kernels and
memory copies that the device reports. An environment variable once switched graphs off; zero graph launches in a
profile were the only trace of it.
"""

from __future__ import annotations

import ctypes
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from harness.engines.census import Boundary, Census, Tally, watching_launches
from harness.engines.observed import Observed, ObservedCopy, Place

#: Names of the CUDA and HIP runtimes; both appear in their own spelling.
_GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")
_WORK = re.compile(r"^(cuda|hip|cu)\w*(Launch\w*Kernel|Memcpy|Memset)")
_MEMCPY_NODE = 1  # cudaGraphNodeTypeMemcpy, hipGraphNodeTypeMemcpy


@dataclass(frozen=True)
class NodeCopy:
    """A memory copy recorded in a graph."""

    target: int
    bytes: int


@dataclass(frozen=True)
class Trace:
    """What the profiler saw of a step. `copies` are (direction, bytes), the direction as in "HtoD"."""

    launches: int
    regions: int
    kernels: Counter[str]
    copies: list[tuple[str, int]]


def observe_gpu(step: Callable[[], Any], boundary: Boundary) -> Observed:
    """Run `step` once under the profiler and count what the device did. `step` returns a `StepResult`."""
    tally = Tally(boundary)
    torch.cuda.synchronize()
    with watching_launches(boundary.graph_class, tally.launch), Census(tally), _profiled() as profiler:
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
        copies=tuple(placed(trace.copies, recorded, tally.outputs)),
        needless=tuple(tally.needless),
    )


def read_trace(events: Iterable[dict[str, Any]]) -> Trace:
    """Read the events of a Chrome trace; those of the host are ordered by their begin."""
    kernels: Counter[str] = Counter()
    copies: list[tuple[str, int]] = []
    calls: list[tuple[float, bool]] = []
    for event in events:
        category, name = event.get("cat"), str(event.get("name"))
        if category == "kernel":
            kernels[name] += 1
        elif category == "gpu_memset":
            kernels["Memset"] += 1
        elif category == "gpu_memcpy":
            copies.append((_direction(name), int(event["args"]["bytes"])))
        elif category in ("cuda_runtime", "cuda_driver"):
            if _GRAPH_LAUNCH.match(name):
                calls.append((event["ts"], True))
            elif _WORK.match(name):
                calls.append((event["ts"], False))
    order = [launch for _, launch in sorted(calls)]
    return Trace(sum(order), _gaps(order), kernels, copies)


def placed(
    copies: Sequence[tuple[str, int]], recorded: Sequence[NodeCopy], outputs: Sequence[tuple[int, int]]
) -> Iterator[ObservedCopy]:
    """Every copy of the profile with its place. Where a recorded one lands is read from its node."""
    left = Counter(copies)
    for node in recorded:
        inside = any(low <= node.target and node.target + node.bytes <= high for low, high in outputs)
        if left["DtoD", node.bytes] > 0:  # a node that the device did not run is no copy
            left["DtoD", node.bytes] -= 1
            place = Place.OUTPUT if inside else Place.DEVICE
            yield ObservedCopy("Memcpy DtoD", node.bytes, place, recorded=True)
    for (direction, nbytes), count in left.items():
        place = Place.STAGING if direction == "HtoD" else Place.DEVICE
        yield from [ObservedCopy(f"Memcpy {direction}", nbytes, place)] * count


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


def _profiled() -> profile:
    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])


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
    """The memory copy that this node makes, if it is one."""
    kind = ctypes.c_int(0)
    _call("GraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
    if kind.value != _MEMCPY_NODE:
        return None
    params = _Memcpy3D()
    _call("GraphMemcpyNodeGetParams", ctypes.c_void_p(node), ctypes.byref(params))
    width, height, depth = params.extent
    return NodeCopy(params.dst.ptr or 0, width * max(height, 1) * max(depth, 1))
