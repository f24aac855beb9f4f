"""Runs for the report's tests, shaped as the quick profile leaves them: two lanes a cell, every gate, arm and bucket.

A report that is only ever shown clean runs loses its crashed cells unseen; these runs hold the unpleasant ones too.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from harness.cells import Cell
from harness.records import (
    CellVerdict,
    Fate,
    GateResult,
    LaneRecord,
    Latency,
    Phase,
    RunHeader,
    Status,
    Verdict,
)
from harness.store import RunData, unit_id

LANES = {"serving": "bfloat16", "float32": "float32"}
BUCKETS = {"decode": (1, 2, 4), "prefill": (16, 64)}
_ARM_COST = {"E": 1.0, "C": 0.86, "R": 0.81}


def quick_cells(levels: Sequence[int] = (0, 3), models: Sequence[str] = ("smollm2-135m-instruct",)) -> list[Cell]:
    """Every cell that the quick profile declares, for each of `models`."""
    return [
        Cell.of(model=model, level=level, mode=mode, workload=workload, ladder=(1, 2, 4))
        for model in models
        for workload in BUCKETS
        for level in levels
        for mode in ("NONE", "TR_HYBRID", "FULL")
    ]


def gate(name: str, status: Status = Status.PASS, message: str = "as claimed", **more: Any) -> GateResult:
    return GateResult(gate=name, status=status, message=message, **more)


def sound_gates(lane: str) -> list[GateResult]:
    """What a cell that passes everything records, in the order of the probes."""
    m = 4 if lane == "float32" else 2
    return [
        gate(
            "dispatch.plan",
            message="every batch from 1 to 5 runs in the bucket that arithmetic gives",
            measured=0,
            threshold=0,
        ),
        gate("G0", message="arms E and C gave the same bits twice on all 24 input sets"),
        gate("G1", message="48 replays of 24 fresh input sets gave the bits of the same code without a recording"),
        gate("G2", message="live rows kept their bits under 5 fills of the pad rows and NaN in 37 foreign slots"),
        gate("G3", message="the worst row is 1.31 times as far from float64 as eager's", measured=1.3112, threshold=m),
        gate(
            "G5",
            message="mean KL against the reference is within three times eager's",
            measured=2.1e-6,
            threshold=7.3e-6,
        ),
        gate(
            "G6",
            message="0 unexplained flips; 22 % of 412 positions have a margin that rounding excuses",
            measured=0,
            threshold=0,
        ),
        gate(
            "G7",
            Status.REPORT,
            "largest difference is 2 units of the last place, first in layer 4",
            evidence={"max_ulp": 2, "first_layer": 4, "equal_bits_share": 0.9931},
        ),
        gate("closed.segments", message="a replay has one segment more than regions", measured=31, threshold=31),
        gate("closed.regions", message="one region a layer", measured=30, threshold=30),
        gate("closed.copies.output", message="one output copy a step", measured=1, threshold=1),
        gate("closed.copies.output_bytes", message="bucket x hidden x itemsize", measured=4608, threshold=4608),
        gate("closed.recompiles", message="nothing was compiled again after capture", measured=0, threshold=0),
        gate("closed.fallbacks", message="no step fell back to eager unexplained", measured=0, threshold=0),
        gate("closed.pool", message="all buckets share the largest one's memory", measured=1.004, threshold=1.15),
    ]


def latency(workload: str, step_us: float = 31_000.0, samples: int = 15, seed: int = 7) -> list[Latency]:
    """Three arms at every bucket of `workload`, with a little drift and spread."""
    noise = random.Random(seed)
    steps = []
    for bucket in BUCKETS[workload]:
        for arm, cost in _ARM_COST.items():
            base = step_us * cost * (0.8 + 0.2 * bucket)
            steps.append(
                timed(arm, bucket, [base * noise.lognormvariate(0.0, 0.012) for _ in range(samples)], workload)
            )
    return steps


def timed(arm: str, bucket: int, samples_us: list[float], workload: str = "decode") -> Latency:
    quartiles = statistics.quantiles(samples_us, n=4) if len(samples_us) > 1 else [float("nan")] * 3
    return Latency(
        arm=arm,
        phase=workload,
        batch=bucket if workload == "decode" else 1,
        bucket=bucket,
        median_us=quartiles[1],
        p25_us=quartiles[0],
        p75_us=quartiles[2],
        samples_us=samples_us,
    )


def lane_record(cell: Cell, lane: str = "serving", **changes: Any) -> LaneRecord:
    """One sound unit of `cell`; `changes` replace its fields."""
    recorded = cell["mode"] != "NONE"
    buckets = BUCKETS[cell["workload"]]
    fields: dict[str, Any] = {
        "cell": cell.id,
        "axes": dict(cell.as_dict()),
        "lane": lane,
        "dtype": LANES[lane],
        "fate": Fate.MEASURED,
        "phase": Phase.TEARDOWN,
        "gates": sound_gates(lane),
        "latency": latency(cell["workload"], seed=len(cell.id)) if lane == "serving" else [],
        "counters": {
            "steps": 412,
            "replayed_steps": 412 if recorded else 0,
            "fallbacks": {},
            "kv_bytes": 41_287_680,
            **(parts_of_a_step() if recorded and lane == "serving" and cell["workload"] == "decode" else {}),
        },
        "capture": {
            "capture_s": 1.31,
            "compile_s": 14.2,
            "buckets": {cell["workload"]: list(buckets) if recorded else []},
            "segments": {str(b): 31 for b in buckets} if recorded else {},
            "regions": {str(b): 30 for b in buckets} if recorded else {},
            "nodes": {str(b): 1022 for b in buckets} if recorded else {},
            "pool_bytes": 3_145_728 if recorded else 0,
            "pool_bytes_largest": 3_133_440 if recorded else 0,
            "compiles": {"num_inductor_compiles": 3, "num_piecewise_graphs_seen": 61},
        },
        "artefacts": {"fx": "9f2c41d7a0b3", "code": "51be0c2277aa", "topology": "c0ffee12ab90"},
        "started": "2026-11-29T17:46:02+00:00",
        "seconds": 38.4,
        "phase_seconds": {"import": 2.9, "build": 0.8, "compile": 14.2, "capture": 1.31, "replay": 15.1, "timing": 3.7},
        "peak_rss_mib": 1871.5,
        "worker": 4211,
    }
    return LaneRecord(**(fields | changes))


def parts_of_a_step() -> dict[str, Any]:
    """The staircase and the anatomy that a decode cell with graphs leaves."""
    stairs = [(1, 1), (2, 2), (3, 4), (4, 4), (5, None)]
    rows = [
        {
            "batch": batch,
            "bucket": bucket,
            "median_us": 20_000.0 + 2_500 * (bucket or 9),
            "p25_us": 19_500.0 + 2_500 * (bucket or 9),
            "p75_us": 21_000.0 + 2_500 * (bucket or 9),
            "samples": 5,
            "pad_share": 1 - batch / bucket if bucket else 0.0,
        }
        for batch, bucket in stairs
    ]
    us = {"dispatch": 900.0, "staging": 40.0, "launch": 0.0, "replay": 24_000.0, "gaps": 0.0, "regions": 4_100.0}
    anatomy = {"clock": "host", "total_us": 30_300.0, "output_us": 1_260.0, **{f"{k}_us": v for k, v in us.items()}}
    copied = {
        "staging": {"count": 5, "bytes": 4_000},
        "handoff": {"count": 0, "bytes": 0},
        "output": {"count": 1, "bytes": 9_000},
    }
    return {
        "staircase": rows,
        "anatomy": {str(bucket): anatomy for bucket in BUCKETS["decode"]},
        "per_bucket": {str(bucket): {"segments": 31, "regions": 30, "copies": copied} for bucket in BUCKETS["decode"]},
        "floor": {"bandwidth_bytes_s": 2e10, "per_bucket": {"1": {"bytes": 270_000_000, "floor_us": 13_500.0}}},
    }


def header(cells: Iterable[Cell], declared: Mapping[str, str] | None = None, **changes: Any) -> RunHeader:
    declared = dict(declared or {})
    ids = [cell.id for cell in cells]
    fields: dict[str, Any] = {
        "run": "20261129-174552-quick-cpu",
        "profile": "quick",
        "profile_hash": "b1946ac92492",
        "command": ["harness", "signoff", "--profile", "quick"],
        "started": "2026-11-29T17:45:52+00:00",
        "cells": ids,
        "units": [unit_id(cell, lane) for cell in ids if cell not in declared for lane in LANES],
        "declared": declared,
        "device": "cpu",
        "fingerprint": {
            "cpu": {"model": "AMD EPYC 9654 96-Core Processor", "cores": 2, "flags": ["avx512_bf16", "avx512f"]},
            "memory_gib": 15.6,
            "gpus": [],
            "kernel": "Linux 6.8.0",
            "rocm": "unknown",
            "torch": "2.13.0+cpu",
            "triton": "unknown",
            "variables": {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "2"},
        },
        "engine_revision": {"commit": "4be1c0d93a51e7", "dirty": False, "versions": {"atom_impl": "0.1.0"}},
        "harness_revision": {"commit": "4be1c0d93a51e7", "dirty": False, "protocol": "1"},
    }
    return RunHeader(**(fields | changes))


def verdict(run: RunHeader, fates: Mapping[str, CellVerdict], **changes: Any) -> Verdict:
    """A verdict over every declared cell: measured, or declared, unless `fates` says otherwise."""
    cells = [fates.get(cell) or _plain_verdict(run, cell) for cell in run.cells]
    red = [c for c in cells if c.fate not in (Fate.MEASURED, Fate.UNSUPPORTED, Fate.WAIVED)]
    n = len(run.units)
    fields: dict[str, Any] = {
        "run": run.run,
        "exit_code": 1 if red else 0,
        "title": f"FAIL: {len(red)} of {len(cells)} cells" if red else "PASS",
        "reasons": [f"{c.cell} is {c.fate.value}: {c.reason}" for c in red] or ["Every gate of every cell passed."],
        "cells": cells,
        "expected": n,
        "executed": n,
        "stored": n,
        "reported": n,
        "baseline": "",
        "finished": "2026-11-29T17:52:11+00:00",
        "seconds": 379.0,
    }
    return Verdict(**(fields | changes))


def _plain_verdict(run: RunHeader, cell: str) -> CellVerdict:
    if cell in run.declared:
        return CellVerdict(cell=cell, fate=Fate.UNSUPPORTED, reason=run.declared[cell])
    return CellVerdict(cell=cell, fate=Fate.MEASURED, reason="every gate passed", gates=30)


def sound_run(cells: Sequence[Cell] | None = None) -> RunData:
    """A run in which everything passed; prefill under FULL is declared, as in the quick profile."""
    cells = quick_cells() if cells is None else cells
    why = "prefill is eager under FULL; measured in the cell with mode NONE"
    declared = {c.id: why for c in cells if c["mode"] == "FULL" and c["workload"] == "prefill"}
    head = header(cells, declared)
    lanes = [lane_record(cell, lane) for cell in cells if cell.id not in declared for lane in LANES]
    return RunData(header=head, lanes=lanes, verdict=verdict(head, {}))


STALE_CELL = "level=3,mode=TR_HYBRID,ladder=1-2-4"
CRASHED_CELL = "level=3,mode=FULL,ladder=1-2-4"
COSTLY_CELL = "mode=FULL,ladder=1-2-4"
STALE = "replay of bucket 4 differs from the compiled arm in 3 of 4 rows, first at step 5 (set 2, replay 1)"
SEGFAULT_STACK = """Fatal Python error: Segmentation fault
  File "region_graph.py", line 118 in capture_end
  File "model_runner.py", line 231 in capture_cudagraph"""
EXTRA_COPY = "2 output copies a step where the closed form has 1"
SEGFAULT = "the worker died of signal 11 (SIGSEGV) while capturing bucket 2"


def failed_run() -> RunData:
    """The sound run with a stale replay at level 3, a crash during capture and an extra copy a step."""
    run = sound_run()
    lanes = [_DAMAGE.get(lane.cell, lambda sound: sound)(lane) for lane in run.lanes]
    red = [
        CellVerdict(cell=STALE_CELL, fate=Fate.WRONG, reason=f"G1: {STALE}", gates=30, failed=["G1"]),
        CellVerdict(cell=CRASHED_CELL, fate=Fate.CRASHED, reason=SEGFAULT),
        CellVerdict(cell=COSTLY_CELL, fate=Fate.COST_CHANGED, reason=EXTRA_COPY, failed=["closed.copies.output"]),
    ]
    return RunData(header=run.header, lanes=lanes, verdict=verdict(run.header, {cell.cell: cell for cell in red}))


def _stale(lane: LaneRecord) -> LaneRecord:
    evidence = {"likely": "STALE", "rows": [0, 2, 3], "first": {"step": 5, "set": 2}, "same_as_previous_step": True}
    where = "arm R, bucket 4, step 5, row 2, hidden: 17 elements"
    broken = gate("G1", Status.FAIL, STALE, measured=3, threshold=0, where=where, evidence=evidence)
    return _with_gate(lane, broken, fate=Fate.WRONG, reason=STALE)


def _costly(lane: LaneRecord) -> LaneRecord:
    broken = gate("closed.copies.output", Status.FAIL, EXTRA_COPY, measured=2, threshold=1)
    return _with_gate(lane, broken, fate=Fate.COST_CHANGED, reason=EXTRA_COPY)


def _crashed(lane: LaneRecord) -> LaneRecord:
    return msgspec.structs.replace(
        lane,
        fate=Fate.CRASHED,
        phase=Phase.CAPTURE,
        gates=[],
        latency=[],
        capture={},
        artefacts={},
        reason=SEGFAULT,
        stack=SEGFAULT_STACK,
        output_tail="\x1b[32mcapturing\x1b[0m bucket 4: 31 segments\ncapturing bucket 2: ...",
    )


def _with_gate(lane: LaneRecord, broken: GateResult, **changes: Any) -> LaneRecord:
    gates = [broken if gate.gate == broken.gate else gate for gate in lane.gates]
    return msgspec.structs.replace(lane, gates=gates, **changes)


_DAMAGE: dict[str, Callable[[LaneRecord], LaneRecord]] = {
    STALE_CELL: _stale,
    CRASHED_CELL: _crashed,
    COSTLY_CELL: _costly,
}


def interrupted_run(kept: int = 7) -> RunData:
    """The sound run, killed after `kept` units."""
    run = sound_run()
    return RunData(header=run.header, lanes=run.lanes[:kept], verdict=None)


def wide_run() -> RunData:
    """Two hundred and four cells, as a nightly over many models has."""
    models = [f"model-{n}" for n in range(17)]
    return sound_run(quick_cells(models=models))


def with_lane(run: RunData, number: int, **changes: Any) -> RunData:
    """`run` with fields of its `number`th record replaced."""
    lanes = list(run.lanes)
    lanes[number] = msgspec.structs.replace(lanes[number], **changes)
    return RunData(run.header, lanes, run.verdict, run.damaged_lines)


def with_verdict(run: RunData, **changes: Any) -> RunData:
    """`run` with fields of its verdict replaced."""
    assert run.verdict is not None
    return RunData(run.header, run.lanes, msgspec.structs.replace(run.verdict, **changes), run.damaged_lines)
