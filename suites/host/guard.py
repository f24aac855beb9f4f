"""Tells whether a call leaves work on a device that it did not wait for.

A launch of 4 us was published as a forward of 4 us. What a call enqueues belongs to no host benchmark, so a call is
watched once, untimed, before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

#: What the CUDA and HIP runtimes call to enqueue work, as the profiler names it: a graph launch reaches no operator.
LAUNCHES = ("LaunchKernel", "GraphLaunch", "MemcpyAsync", "MemsetAsync", "LaunchCooperativeKernel")


class UnsynchronisedWork(RuntimeError):
    """A host benchmark enqueues device work and does not wait for it, so its time means nothing."""


class DeviceWork(TorchDispatchMode):
    """Lists the operators that run on another device than the CPU. A view moves nothing and is not listed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [value for value in tree_iter((args, kwargs, result)) if isinstance(value, torch.Tensor)]
        if any(tensor.device.type != "cpu" for tensor in tensors) and not func.is_view:
            self.seen.append(str(func))
        return result


def device_work(call: Callable[[], object]) -> list[str]:
    """Names of what one `call` enqueues on a device: operators and, where there is a GPU, launches."""
    launches: list[str] = []
    with DeviceWork() as work:
        if torch.cuda.is_available():
            launches = _launches(call)
        else:
            call()
    return [*work.seen, *launches]


def _launches(call: Callable[[], object]) -> list[str]:
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    names = {event.key for event in seen.key_averages()}
    return sorted(name for name in names if name.startswith(("cuda", "hip")) and any(kind in name for kind in LAUNCHES))


def refuse_device_work(call: Callable[[], object]) -> None:
    """Raise `UnsynchronisedWork` if `call` enqueues anything on a device."""
    found = device_work(call)
    if found:
        raise UnsynchronisedWork(
            f"this call enqueues {', '.join(found[:4])}{' ...' if len(found) > 4 else ''}, and its time would end "
            "before the work does; pass synchronise=True to time it from idle to idle, or time the host part alone"
        )
