"""Kernels of known length on a GPU, k of them in one graph.

A spin by the shader's own cycle counter is as long as the clock is slow, so it cannot tell a wrong timer from a cool
GPU. The length is known from the device's constant timer where Triton reaches it: nanoseconds on NVIDIA's, 100 MHz on
AMD's. Elsewhere torch's cycle spin is measured once by the device's events, so long that no launch counts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

SPIN_US = 200.0
_LONG_CYCLES = 100_000_000


class GpuSpin:
    """Graphs of 1 to many spin kernels, recorded when first asked for. Launches go to the current stream."""

    def __init__(self, kernel: Callable[[], None], spin_us: float, truth: str) -> None:
        self.spin_us, self.truth, self._kernel = spin_us, truth, kernel
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def launch(self, kernels: int) -> None:
        if kernels not in self._graphs:
            self._graphs[kernels] = self._record(kernels)
        self._graphs[kernels].replay()

    def close(self) -> None:
        self._graphs.clear()

    def _record(self, kernels: int) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(kernels):
                self._kernel()
        graph.replay()
        torch.cuda.synchronize()
        return graph


def gpu_spin() -> GpuSpin:
    """The best spin that this machine can make."""
    try:
        return _by_constant_timer()
    except Exception:  # no Triton, or one that does not reach the timer
        return _by_cycles()


def _by_constant_timer() -> GpuSpin:
    from harness.timing import spin_kernels as kernels

    amd = torch.version.hip is not None
    spin = kernels.spin_amd if amd else kernels.spin_nvidia
    ticks = int(SPIN_US * (kernels.AMD_TICKS_PER_US if amd else kernels.NVIDIA_TICKS_PER_US))
    out = torch.zeros(1, dtype=torch.int64, device="cuda")

    def kernel() -> None:
        spin[(1,)](out, ticks, num_warps=1)

    kernel()
    torch.cuda.synchronize()
    return GpuSpin(kernel, SPIN_US, "the device's constant timer")


def _by_cycles() -> GpuSpin:
    def spin(cycles: int) -> None:
        torch.cuda._sleep(cycles)

    spin(_LONG_CYCLES)  # the clocks rise
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    spin(_LONG_CYCLES)
    end.record()
    torch.cuda.synchronize()
    cycles_per_us = _LONG_CYCLES / (begin.elapsed_time(end) * 1e3)
    cycles = int(SPIN_US * cycles_per_us)
    return GpuSpin(lambda: spin(cycles), SPIN_US, "the device's events over one long spin")


def event_us(work: Callable[[], object]) -> float:
    """Microseconds of `work` between two events on the current stream, from an idle device."""
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end) * 1e3)
