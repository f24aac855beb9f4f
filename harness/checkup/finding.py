"""One finding, and what a check is given to look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.host import Host, TorchFacts

#: unfit: the evidence would be worthless or cannot be had. warn: it may mislead. note: worth knowing.
Severity = Literal["unfit", "warn", "note"]


@dataclass(frozen=True)
class Finding:
    """`message` is a sentence that says what was seen; `way_out` what to do, empty where nothing needs doing."""

    name: str
    ok: bool
    severity: Severity
    message: str
    way_out: str = ""


@dataclass(frozen=True)
class Patient:
    """The machine, its torch (asked once), and what it is wanted for. `device` is None where nobody chose one."""

    host: Host
    torch: TorchFacts
    device: str | None
    results: Path

    @property
    def on_gpu(self) -> bool:
        """Whether the work will run on a GPU: one is usable and the CPU was not asked for."""
        return bool(self.torch.gpus) and self.device != "cpu"


def healthy(name: str, message: str) -> Finding:
    return Finding(name, True, "note", message)
