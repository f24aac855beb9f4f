"""Finds the run that a killed or interrupted command left behind, if what it measured is still what is asked for.

Resuming across a code change or another machine would join two halves that were never one thing: the key holds both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.records import PROTOCOL_VERSION, RunHeader
from harness.store import DamagedRun, RunData, RunLocked, RunStore, list_runs, load_run, read_header, recorded_units


@dataclass(frozen=True)
class Resumed:
    store: RunStore
    run: RunData

    def __str__(self) -> str:
        done = len(recorded_units(self.run))
        return f"resuming {self.run.header.run}: {done} of {len(self.run.header.units)} units recorded"


def resume_key(
    *,
    profile_hash: str,
    filters: Mapping[str, Sequence[str]],
    code: Mapping[str, Any],
    device: str,
    series: str,
) -> str:
    """Equal for two commands whose units may stand in one run: same declaration, code, device and kind of machine."""
    facts = {
        "protocol": PROTOCOL_VERSION,
        "profile": profile_hash,
        "filters": filters,
        "code": code,
        "device": device,
        "series": series,
    }
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()[:16]


def resume(runs: Path, wanted: RunHeader) -> tuple[Resumed | None, list[str]]:
    """Reopen the newest unfinished run that `wanted` continues; also says why a candidate was passed over.

    A finished run is never continued: it has a verdict, or, for `harness run`, all of its units.
    """
    notes: list[str] = []
    for folder in list_runs(runs):
        try:
            if not _continues(read_header(folder), wanted) or _finished(load_run(folder)):
                continue
            store, run = RunStore.reopen(folder)
        except RunLocked as error:
            notes.append(f"{error}; not resuming it")
            continue
        except DamagedRun:
            continue
        return Resumed(store, run), notes
    return None, notes


def _continues(header: RunHeader, wanted: RunHeader) -> bool:
    return bool(wanted.resume_key) and all(
        getattr(header, name) == getattr(wanted, name) for name in ("resume_key", "kind", "units", "cells", "probes")
    )


def _finished(run: RunData) -> bool:
    if run.verdict is not None:
        return True
    return run.header.kind == "run" and recorded_units(run) >= set(run.header.units)
