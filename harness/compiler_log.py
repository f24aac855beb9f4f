"""What torch's compiler said of a unit: breaks, failed guards, graphs, generated code; kept where something failed.

"3 recompiles" sent people to run a night's cell again under TORCH_LOGS to learn which guard it was. torch writes all of
it to one logger, which `TORCH_TRACE` and tlparse read too; here every event goes to a file as it comes, so that a
worker that dies leaves it behind, and a unit that ends well takes its files with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.records import CompilerLog

TRACE_LOGGER = "torch.__trace"
FOLDER = "compile"
INDEX = "index.jsonl"
MAX_FILE_CHARS = 200_000
MAX_FOLDER_CHARS = 4_000_000
MAX_TEXT_CHARS = 2_000
MAX_TEXTS = 20

#: Events that are kept whole, in files: torch's name, and the file's suffix.
FILES = {
    "dynamo_output_graph": ".py",
    "dynamo_cpp_guards_str": ".txt",
    "aot_inference_graph": ".py",
    "inductor_post_grad_graph": ".py",
    "inductor_output_code": ".py",
    "fx_graph_cache_miss": ".json",
    "aotautograd_cache_miss": ".json",
    "aotautograd_cache_bypass": ".json",
}
#: Events whose text goes into the record.
TEXTS = {
    "dynamo_graph_break_reason": "graph_breaks",
    "recompile_reasons": "recompiles",
    "dynamo_error": "failures",
}


def folder_of(logs: Path, unit: str) -> Path:
    """Where a unit's files go, below the run's folder of logs."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", unit).strip("-")[:60]
    return logs / FOLDER / f"{readable}-{hashlib.sha256(unit.encode()).hexdigest()[:8]}"


class CompilerTrace(logging.Handler):
    """Writes torch's compile events of one unit below `folder`, up to a size; `phase` is what the worker is doing."""

    def __init__(self, folder: Path, phase: Callable[[], str]) -> None:
        super().__init__(logging.DEBUG)
        self._folder, self._phase = folder, phase
        self._chars = self._number = 0
        shutil.rmtree(folder, ignore_errors=True)  # of a launch before this one

    def __enter__(self) -> CompilerTrace:
        # First, for torch's own handler removes itself on the first event, and logging then skips the one behind it.
        logging.getLogger(TRACE_LOGGER).handlers.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(TRACE_LOGGER).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._keep(getattr(record, "metadata", {}), getattr(record, "payload", None))
        except Exception:  # a log that cannot be written must not end what it describes
            self.handleError(record)

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep(self, metadata: Mapping[str, Any], payload: object) -> None:
        name = _name(metadata)
        text = payload if isinstance(payload, str) else json.dumps(payload, default=str) if payload else ""
        if name == "compilation_metrics":
            text = _failure(metadata[name])
            if text:
                self._note("failures", text)
        elif name in TEXTS:
            self._note(TEXTS[name], text)
        elif name in FILES:
            self._write(name, text)

    def _write(self, name: str, text: str) -> None:
        kept = text[: max(0, min(MAX_FILE_CHARS, MAX_FOLDER_CHARS - self._chars))]
        if not kept:
            self._line({"left_out": name})
            return
        self._number += 1
        self._chars += len(kept)
        file = f"{self._number:03}-{name}{FILES[name]}"
        (self._made() / file).write_text(kept + ("\n... cut\n" if len(kept) < len(text) else ""), encoding="utf-8")
        self._line({"file": file})

    def _note(self, kind: str, text: str) -> None:
        self._line({kind: text[:MAX_TEXT_CHARS]})

    def _line(self, entry: dict[str, str]) -> None:
        with (self._made() / INDEX).open("a", encoding="utf-8") as index:
            index.write(json.dumps({"phase": self._phase(), **entry}) + "\n")

    def _made(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder


def compiler_log(logs: Path, unit: str, counters: Mapping[str, int] | None = None) -> CompilerLog | None:
    """What is known of a unit's compiles, from its files; None when the compiler did nothing."""
    folder = folder_of(logs, unit)
    entries = list(_entries(folder / INDEX))
    if not entries:
        return None
    texts = {kind: _texts(kind, entries) for kind in ("graph_breaks", "recompiles", "failures")}
    files = [entry["file"] for entry in entries if "file" in entry]
    events = Counter(name.partition("-")[2].partition(".")[0] for name in files)
    return CompilerLog(
        folder=f"{logs.name}/{FOLDER}/{folder.name}",
        phases=dict(Counter(entry["phase"] for entry in entries)),
        events=dict(events),
        counters=dict(counters or {}),
        files=files[-MAX_TEXTS:],
        left_out=sum("left_out" in entry for entry in entries),
        **texts,
    )


def dynamo_counters() -> dict[str, int]:
    """Dynamo's own counts of this process, by group and name; empty where nothing was ever compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    groups = ("stats", "graph_break", "unimplemented", "frames", "recompiles", "aot_autograd", "inductor")
    return {
        f"{group}.{str(name)[:200]}": int(count)
        for group in groups
        for name, count in utils.counters.get(group, {}).items()
        if isinstance(count, (int, float))
    }


def _name(metadata: Mapping[str, Any]) -> str:
    kind = next(iter(metadata), "")
    return str(metadata[kind].get("name", "")) if kind == "artifact" else kind


def _failure(metrics: Mapping[str, Any]) -> str:
    if not metrics.get("fail_type"):
        return ""
    where = f"{metrics.get('fail_user_frame_filename')}:{metrics.get('fail_user_frame_lineno')}"
    return f"{metrics['fail_type']} at {where}: {metrics.get('fail_reason')}"


def _texts(kind: str, entries: list[dict[str, str]]) -> list[str]:
    """Each with its phase, the first ones, every one once."""
    found = dict.fromkeys(f"in {entry['phase']}: {entry[kind]}" for entry in entries if kind in entry)
    return list(found)[:MAX_TEXTS]


def _entries(index: Path) -> Iterator[dict[str, str]]:
    """The lines of an index, up to one that a dying worker cut."""
    try:
        lines = index.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return
