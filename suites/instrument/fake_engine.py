"""An engine without a model, whose cells pass, raise, crash, hang or lie as the environment says.

A harness that was only tried on engines that work is untried. FAKE_ENGINE is a JSON object: a cell's axes, such as
"level=3,mode=FULL", to the name of a behaviour. FAKE_JOURNAL names a file that gets one line for each unit that was
really opened. Nothing here imports torch, so that the command's own process stays light.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.cells import Cell

KNOWN_MODELS = ("fake-model", "damaged-model")
GOOD = ("G1", "pass", 0.0)


class FakeEngine:
    """Fits `harness.engines.base.Engine` without inheriting from it."""

    name = "fake"

    def versions(self) -> dict[str, str]:
        return {"fake": "1.0"}

    def supports(self, cell: Cell) -> SimpleNamespace:
        if cell["model"] not in KNOWN_MODELS:
            raise ValueError(f"unknown model {cell['model']!r}; the models are {', '.join(KNOWN_MODELS)}")
        declared = cell["workload"] == "prefill" and cell["mode"] == "FULL"
        return SimpleNamespace(ok=not declared, reason="prefill is eager under FULL" if declared else "")

    def prepare(self, cell: Cell) -> None:
        if cell["model"] == "damaged-model":
            raise RuntimeError("weights.gguf has 12 bytes, expected 100: fetch it again")

    def open(self, cell: Cell, spec: Any) -> FakeSession:
        return FakeSession(behaviour_of(cell), f"{cell.id}#{spec.dtype}")


def behaviour_of(cell: Cell) -> str:
    """The first behaviour whose axes the cell has."""
    axes = {f"{name}={value}" for name, value in cell.as_dict().items()}
    behaviours = json.loads(os.environ.get("FAKE_ENGINE", "{}"))
    return next((str(what) for query, what in behaviours.items() if set(query.split(",")) <= axes), "pass")


class FakeSession:
    def __init__(self, behaviour: str, unit: str) -> None:
        self.behaviour, self.unit = behaviour, unit
        if journal := os.environ.get("FAKE_JOURNAL"):
            with Path(journal).open("a") as file:
                print(unit, file=file)
        for line in range(60):
            print(f"line {line} of {unit}")
        if behaviour == "raise in open":
            raise OSError("weights.gguf is cut short")

    def capture(self) -> dict[Any, Any]:
        _CAPTURES.get(self.behaviour, dict)()
        return {"buckets": {"decode": [1, 2]}, "segments": {2: 3}, "capture_s": float("nan")}

    def gates(self) -> list[tuple[str, str, float | None]]:
        if self.behaviour == "wrong in every third launch":
            opened = Path(os.environ["FAKE_JOURNAL"]).read_text().splitlines().count(self.unit)
            return [("G1", "fail", 0.5)] if opened % 3 == 0 else [GOOD]
        return _GATES.get(self.behaviour, [GOOD, ("closed.copies", "pass", 1.0)])

    def artefacts(self) -> dict[str, str]:
        return {"graph": "abc"}

    def close(self) -> None:
        _CLOSES.get(self.behaviour, dict)()


def measure(context: Any) -> Any:
    """Stands in for the probes: hands on what the session says."""
    from harness.probes.base import ProbeResult
    from harness.records import GateResult, Latency, Phase, Status

    context.enter(Phase.REPLAY)
    gates = [
        GateResult(gate=name, status=Status(status), message=f"{name} of the fake", measured=figure)
        for name, status, figure in context.session.gates()
    ]
    latency = Latency(
        arm="R", phase="decode", batch=1, bucket=1, median_us=2.0, p25_us=1.0, p75_us=3.0, samples_us=[1.0, 2.0, 3.0]
    )
    counters: dict[Any, Any] = {"steps": 3, ("tuple", "key"): float("inf")}
    return ProbeResult(gates=gates, latency=[latency], counters=counters)


def _raise() -> None:
    raise RuntimeError("operation not permitted when stream is capturing\nsecond line")


GUARD = "tensor 'input_ids' size mismatch at index 0. expected 4, actual 5"


def _say_as_the_compiler(event: str, text: str) -> None:
    """What torch would log of a compile, without torch."""
    log = logging.getLogger("torch.__trace")
    fields = {"metadata": {"artifact": {"name": event}}, "payload": text}
    log.handle(log.makeRecord(log.name, logging.DEBUG, __file__, 0, "", (), None, extra=fields))


def _segfault() -> None:
    print("about to touch freed memory")
    _say_as_the_compiler("recompile_reasons", GUARD)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def _hang_and_chat() -> None:
    """A hang that a limit on silence never ends, with a child in a session of its own that must not outlive it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if journal := os.environ.get("FAKE_JOURNAL"):
        Path(f"{journal}.child").write_text(str(child.pid))

    def chat() -> None:
        while True:
            print("still capturing")
            time.sleep(0.02)

    threading.Thread(target=chat, daemon=True).start()
    while True:
        time.sleep(0.01)


def _wait() -> None:
    """Long enough for a test to interrupt the run, and no longer than a test's patience if it does not."""
    time.sleep(60)


def _abort_at_exit() -> None:
    atexit.register(os.abort)


_CAPTURES: dict[str, Any] = {
    "raise in capture": _raise,
    "segfault in capture": _segfault,
    "hang in capture": _hang_and_chat,
    "wait in capture": _wait,
    "sys.exit in capture": lambda: sys.exit(0),
    "vanish in capture": lambda: os._exit(0),
}
_CLOSES: dict[str, Any] = {
    "raise in close": _raise,
    "segfault in close": _segfault,
    "wrong, then segfault in close": _segfault,
    "abort at exit": _abort_at_exit,
}
_GATES: dict[str, list[tuple[str, str, float | None]]] = {
    "wrong": [GOOD, ("G3.rows", "fail", 9.0)],
    "wrong, then segfault in close": [("G3.rows", "fail", 9.0)],
    "downgraded": [GOOD, ("dispatch.mode", "fail", None)],
    "cost changed": [GOOD, ("closed.copies", "fail", 2.0)],
    "downgraded and cost changed": [("closed.copies", "fail", 2.0), ("dispatch.mode", "fail", None)],
    "undecided": [GOOD, ("G5", "inconclusive", 1.0)],
    "nan": [("G5", "pass", float("nan"))],
    "no gates": [],
    "only reports": [("G7", "report", 1.0), ("G1", "not-applicable", None)],
}
