"""Triton kernels that spin until the device's constant timer has advanced by so many ticks."""

from __future__ import annotations

import triton
import triton.language as tl

NVIDIA_TICKS_PER_US = 1000  # %globaltimer counts nanoseconds
AMD_TICKS_PER_US = 100  # s_memrealtime counts at 100 MHz


@triton.jit
def spin_nvidia(out, ticks):  # type: ignore[no-untyped-def]
    begun = tl.extra.cuda.globaltimer()
    last = begun
    while last - begun < ticks:
        last = tl.extra.cuda.globaltimer()
    tl.store(out, last)


@triton.jit
def spin_amd(out, ticks):  # type: ignore[no-untyped-def]
    begun = _memrealtime()
    last = begun
    while last - begun < ticks:
        last = _memrealtime()
    tl.store(out, last)


@triton.jit
def _memrealtime():  # type: ignore[no-untyped-def]
    # Triton's own `memrealtime` waits for vector memory; this is a scalar load, and comes back under lgkmcnt.
    return tl.inline_asm_elementwise(
        "s_memrealtime $0\ns_waitcnt lgkmcnt(0)", "=s", [], dtype=tl.int64, is_pure=False, pack=1
    )
