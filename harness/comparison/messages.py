"""What the comparison and its two live workers say to each other, one JSON object a line."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.job import UnitSpec
from harness.profile import Profile


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """First line to a worker. `root` is where the engine's package must come from."""

    profile: Profile
    device: str
    root: str
    parent: int


class OpenCell(msgspec.Struct, frozen=True, tag="open"):
    unit: UnitSpec


class Block(msgspec.Struct, frozen=True, tag="block"):
    """Time this many steps of the opened cell at one bucket."""

    bucket: int
    steps: int


class CloseCell(msgspec.Struct, frozen=True, tag="close"):
    pass


Request = Begin | OpenCell | Block | CloseCell


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker imported the engine."""

    versions: dict[str, str]


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The cell is captured and warm; `phase` is its steps' and `buckets` are what can be timed."""

    phase: str
    buckets: list[int]
    artefacts: dict[str, Any]
    refused: str = ""  # why the timer may not be believed; then nothing can be timed


class Timed(msgspec.Struct, frozen=True, tag="timed"):
    """`again` and `kept`: why the block was timed again, and what still held when it was kept."""

    samples_us: list[float]
    again: list[str] = []
    kept: list[str] = []


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    pass


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """`too_old` says that the engine lacks what the harness's adaptor asks of it; else it raised at its work."""

    reason: str
    stack: str
    too_old: bool = False


Reply = Ready | Opened | Timed | Closed | Refused
REQUESTS = msgspec.json.Decoder(Request)
REPLIES = msgspec.json.Decoder(Reply)
