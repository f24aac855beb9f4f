"""Side streams on CUDA and HIP, and the error of a segment that ends before they have come back.

The runtime's own error says "unjoined work" and names neither stream nor place, and leaves torch's allocator inside the
capture that failed. Streams forked here are therefore known by name, and joined before the capture is given up.
"""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager, suppress

import torch

from atom_impl.device.base import CaptureError, unjoined
from atom_impl.device.software.places import place_of


class _Forked(threading.local):
    """The side streams of this thread's capture that are not joined yet, with the place of the fork."""

    def __init__(self) -> None:
        self.streams: dict[CudaSideStream, str] = {}


_forked = _Forked()


class CudaSideStream:
    """A `torch.cuda.Stream` with a name. Outside a capture, `fork` and `join` are plain waits."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self._stream = torch.cuda.Stream(device)
        self._entered: list[AbstractContextManager[object]] = []

    def fork(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        if torch.cuda.is_current_stream_capturing():
            _forked.streams.setdefault(self, place_of(sys._getframe(1)))

    def join(self) -> None:
        if torch.cuda.is_current_stream_capturing() and _forked.streams.pop(self, None) is None:
            raise CaptureError(f"join() of side stream {self.name!r}, which this segment has not forked")
        torch.cuda.current_stream().wait_stream(self._stream)

    def __enter__(self) -> CudaSideStream:
        if torch.cuda.is_current_stream_capturing() and self not in _forked.streams:
            raise CaptureError(
                f"work for side stream {self.name!r}, which waits for nothing of this segment: it would run outside "
                "the graph; call fork() first"
            )
        context = torch.cuda.stream(self._stream)
        context.__enter__()
        self._entered.append(context)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop().__exit__(None, None, None)

    def __repr__(self) -> str:
        return f"CudaSideStream({self.name!r})"


def join_forgotten() -> CaptureError | None:
    """Join what this thread's capture left open, so that it can end; the error that it then has to end with."""
    forgotten = dict(_forked.streams)
    _forked.streams.clear()
    for stream in forgotten:
        with suppress(RuntimeError):  # an invalidated capture says so when it is ended, which must still happen
            torch.cuda.current_stream().wait_stream(stream._stream)
    if not forgotten:
        return None
    return unjoined(", ".join(f"{stream.name!r}, forked at {place}," for stream, place in forgotten.items()))


def explain(error: RuntimeError) -> Exception:
    """The runtime's error for streams that were forked without `side_stream`, in the words of ours; others as is.

    A collective's stream is one of them: waiting for its work is what joins it.
    """
    what = "(made without `side_stream`, or of a collective that nobody waited for)"
    return unjoined(what) if "unjoined" in str(error).lower() else error
