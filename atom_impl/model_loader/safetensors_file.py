"""Reading and writing safetensors files by mapping, with neighbours kept together.

A merged matrix made by concatenation costs a copy of most of the model in every process. Our own files put the parts
of one parameter next to each other, so the merged matrix is simply their range of the mapping; any other file is
concatenated.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from atom_impl.model_loader.source import WeightsError

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ALIGNMENT = 64  # of the data, so that mapped matrices start on a cache line
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: byte range from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """A mapped file. Tensors are views of the mapping: pages load when touched and are shared by processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = _read_entries(path)
        self._storage = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)

    def stacked(self, names: Sequence[str]) -> torch.Tensor:
        """The named tensors stacked along dim 0: a view where they are neighbours in the file, else a copy."""
        first = self.entries[names[0]]
        rows, end = 0, first.start
        for name in names:
            entry = self.entries[name]
            adjacent = entry.start == end and entry.dtype == first.dtype and entry.shape[1:] == first.shape[1:]
            if not adjacent:
                return torch.cat([self._view(self.entries[part]) for part in names])
            rows, end = rows + entry.shape[0], entry.stop
        return self._view(Entry(first.dtype, (rows, *first.shape[1:]), first.start, end))

    def _view(self, entry: Entry) -> torch.Tensor:
        piece = self._storage[entry.start : entry.stop]
        if entry.start % entry.dtype.itemsize:
            piece = piece.clone()  # a foreign file may start its data anywhere; loads must be aligned
        return torch.empty(0, dtype=entry.dtype).set_(piece, 0, entry.shape)  # type: ignore[call-overload]


def write_float32(
    path: Path, shapes: Iterable[tuple[str, tuple[int, ...]]], produce: Callable[[str], np.ndarray]
) -> int:
    """Write tensors in the order given, one at a time, as float32; returns the file's CRC-32.

    `produce(name)` gives one tensor's values; a wrong shape raises ValueError.
    """
    plan = list(shapes)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in plan:
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    crc = 0
    with path.open("wb") as file:
        for chunk in _chunks(struct.pack("<Q", len(text)) + text, plan, produce):
            file.write(chunk)
            crc = zlib.crc32(chunk, crc)
    return crc


def _chunks(
    header: bytes, plan: list[tuple[str, tuple[int, ...]]], produce: Callable[[str], np.ndarray]
) -> Iterable[bytes | memoryview]:
    yield header
    for name, shape in plan:
        values = np.ascontiguousarray(produce(name), dtype="<f4")
        if values.shape != shape:
            raise ValueError(f"{name} is {values.shape}; the model's config asks for {shape}")
        yield values.data.cast("B")


def _read_entries(path: Path) -> dict[str, Entry]:
    """The file's table of contents, checked against its size. Raises WeightsError for a cut or foreign file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else _MAX_HEADER_BYTES
        if length >= min(size, _MAX_HEADER_BYTES):
            raise WeightsError(f"{path} is {size} bytes and no safetensors file; copy it again")
        try:
            header = json.loads(file.read(length))
            return {
                name: _entry(name, fields, 8 + length, size)
                for name, fields in header.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{path} is damaged or cut short: {error}; copy it again") from error


def _entry(name: str, fields: dict[str, object], base: int, size: int) -> Entry:
    dtype = DTYPES.get(str(fields["dtype"]))
    if dtype is None:
        raise ValueError(f"{name} is stored as {fields['dtype']}; only {', '.join(DTYPES)} can be read")
    shape = tuple(int(n) for n in fields["shape"])  # type: ignore[attr-defined]
    start, stop = (base + int(offset) for offset in fields["data_offsets"])  # type: ignore[attr-defined]
    if stop > size or not base <= start <= stop or stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} needs bytes {start} to {stop} of {size} for shape {shape}")
    return Entry(dtype, shape, start, stop)
