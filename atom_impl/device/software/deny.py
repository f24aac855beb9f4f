"""What a GPU cannot record: the host reading device data.

On a CPU `.item()` simply works, so a forward that would fail its first capture on a GPU passes every functional test.
Two nets are needed. Reads inside composite operators never reach a dispatch mode, so the CPU kernels themselves are
overridden; `tolist`, `numpy` and printing reach no kernel at all, so Tensor's attributes are guarded. Both are in
place only while a session is open, and act only on the thread that captures.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from atom_impl.device.base import CaptureError
from atom_impl.device.software.arena import library
from atom_impl.device.software.bodies import register_body
from atom_impl.device.software.host import is_host
from atom_impl.device.software.operators import tensors_in
from atom_impl.device.software.sites import call_site
from atom_impl.device.software.thread_state import current

#: Kernels whose result depends on device data that the host has read.
_READING_KERNELS = (
    *("_local_scalar_dense", "equal", "nonzero", "nonzero.out", "masked_select", "masked_select.out"),
    *("_unique2", "unique_consecutive", "unique_dim", "bincount", "repeat_interleave.Tensor"),
)
#: Operators that read scalars in their CPU kernels only; on a GPU they record.
READS_ON_CPU_ONLY = frozenset(
    (
        "aten::multinomial",
        "aten::quantile",
        "aten::nanquantile",
        "aten::fake_quantize_per_tensor_affine",
        "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    )
)
_READING_ATTRIBUTES = (
    *("item", "tolist", "numpy", "cpu", "__array__", "__dlpack__", "__repr__", "__format__", "__contains__"),
    *("__bool__", "__int__", "__float__", "__complex__", "__index__"),
)


def refuse(what: str) -> NoReturn:
    """Raise for a read of device data, and make the capture fail even if the error is swallowed."""
    graph = current()
    inside = f", inside {graph.recorder.active}" if graph is not None and graph.recorder.active else ""
    error = CaptureError(
        f"{what} reads device data on the host while capturing, at {call_site()}{inside}; a GPU cannot record that. "
        "Keep the value on the device, read it before the capture or in an eager region, or mark host memory with "
        "host(tensor)"
    )
    if graph is not None:
        graph.invalidate(error)
    raise error


def _may_read(*values: Any) -> bool:
    graph = current()
    if graph is None or graph.recorder.active in READS_ON_CPU_ONLY:
        return True
    tensors = list(tensors_in(list(values)))
    return bool(tensors) and all(t.layout is torch.strided and _on_host(t.untyped_storage()) for t in tensors)


def _on_host(storage: torch.UntypedStorage) -> bool:
    return is_host(storage) or bool(storage.data_ptr() and library().stray_contains(storage.data_ptr()))


class KernelOverrides:
    """CPU kernels that refuse while this thread captures, and otherwise call the original."""

    def __init__(self) -> None:
        self._library: torch.library.Library | None = None

    def install(self) -> None:
        if not hasattr(torch.library, "get_kernel"):  # torch < 2.9: the attribute guards alone
            return
        overrides = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*verriding a previously registered kernel.*")
            for name in _READING_KERNELS:
                original = torch.library.get_kernel(f"aten::{name}", "CPU")
                overrides.impl(name, functools.partial(_guarded_kernel, name, original), "CPU", with_keyset=True)
            original = torch.library.get_kernel("aten::one_hot", "AutogradCPU")
            guarded = functools.partial(_guarded_one_hot, original)
            overrides.impl("one_hot", guarded, "AutogradCPU", with_keyset=True)
        self._library = overrides

    def remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None


def _guarded_kernel(name: str, original: Any, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    size_is_given = name == "repeat_interleave.Tensor" and kwargs.get("output_size") is not None
    if not size_is_given and not _may_read(*args):
        refuse(f"aten::{name}")
    return original.call_boxed(keyset, *args, **kwargs)


def _guarded_one_hot(original: Any, keyset: Any, index: torch.Tensor, num_classes: int = -1) -> Any:
    return original.call_boxed(keyset, index, num_classes) if current() is None else _one_hot(index, num_classes)


def _one_hot(index: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """As a GPU does it: the index is read only to find an unknown number of classes, not to check it."""
    if num_classes <= 0:
        refuse("one_hot without num_classes")
    classes = torch.zeros(*index.shape, num_classes, dtype=torch.long)
    return classes.scatter_(-1, index.unsqueeze(-1), 1)


register_body(torch.ops.aten.one_hot.default, _one_hot)


class AttributeGuards:
    """Guards on `torch.Tensor`'s own attributes; a TorchFunctionMode would make Dynamo recompile."""

    def __init__(self) -> None:
        self._inherited: list[str] = []
        self._own: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        for name in _READING_ATTRIBUTES:
            original = getattr(torch.Tensor, name)
            if name in vars(torch.Tensor):
                self._own[name] = original
            else:
                self._inherited.append(name)
            setattr(torch.Tensor, name, _guarded_attribute(name, original))

    def remove(self) -> None:
        for name, original in self._own.items():
            setattr(torch.Tensor, name, original)
        for name in self._inherited:
            delattr(torch.Tensor, name)
        self._own.clear()
        self._inherited.clear()


def _guarded_attribute(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if current() is not None and not _may_read(self):
            refuse(f"Tensor.{name}")
        return original(self, *args, **kwargs)

    return guarded
