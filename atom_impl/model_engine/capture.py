"""The capture loop: which buckets, in which order, and what they cost."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tqdm import tqdm

from atom_impl.config import CUDAGraphMode
from atom_impl.graphs.recording import Recording
from atom_impl.utils.region_graph import graph_pool

if TYPE_CHECKING:
    from atom_impl.model_engine.model_runner import ModelRunner


@dataclass(frozen=True, order=True)
class Bucket:
    """One recording to make. Ordered by rows, so that the largest comes first and the pool is made to its measure."""

    rows: int
    phase: str


@dataclass
class CaptureReport:
    """What was recorded. Bytes are the pool's; `pool_bytes_largest` is its size after the largest bucket alone."""

    seconds: float = 0.0
    buckets: dict[str, list[int]] = field(default_factory=lambda: {"prefill": [], "decode": []})
    pool_bytes_largest: int = 0
    pool_bytes: int = 0
    bucket_seconds: dict[str, float] = field(default_factory=dict)


def buckets_of(runner: ModelRunner) -> list[Bucket]:
    """Every bucket that the runner's mode records, largest first."""
    decode = [Bucket(size * runner.max_q_len, "decode") for size in runner.capture_sizes]
    prefill = [Bucket(size, "prefill") for size in runner.prefill_sizes]
    if runner.mode.uses_tr_hybrid():
        wanted = decode + prefill
    elif runner.mode.decode_mode() is CUDAGraphMode.FULL:
        wanted = decode
    else:
        wanted = []
    return sorted(wanted, reverse=True)


def capture_all(runner: ModelRunner) -> CaptureReport:
    """Warm up and record each bucket. Raises `ValueError` for a ladder that the scheduler cannot reach."""
    _check(runner)
    report = CaptureReport()
    started = time.perf_counter()
    pool = graph_pool(runner.device)
    before = runner.device.pool_bytes(pool)
    buckets = buckets_of(runner)
    for bucket in tqdm(buckets, desc="capturing graphs", disable=not sys.stderr.isatty()):
        begun = time.perf_counter()
        capture_bucket(runner, bucket)
        runner.device.synchronize()
        report.bucket_seconds[f"{bucket.phase} {bucket.rows}"] = time.perf_counter() - begun
        report.buckets[bucket.phase].insert(0, bucket.rows)
        report.pool_bytes_largest = report.pool_bytes_largest or runner.device.pool_bytes(pool) - before
    report.pool_bytes = runner.device.pool_bytes(pool) - before
    report.seconds = time.perf_counter() - started
    return report


def capture_bucket(runner: ModelRunner, bucket: Bucket) -> None:
    """Run once as a step would, then record the same run: workspaces, handles and specialised code exist by then."""
    prefill = bucket.phase == "prefill"
    runner.run_dummy(bucket.rows, is_prefill=prefill, tr_graph=None)
    if runner.mode.uses_tr_hybrid():
        runner.run_dummy(bucket.rows, is_prefill=prefill, tr_graph="record")
    else:
        runner.run_dummy(bucket.rows, is_prefill=prefill, tr_graph=None, record_request=True)


def recordings_of(runner: ModelRunner) -> dict[str, Recording]:
    """Every recording by a name that says what it is."""
    found = {f"request {key}": recording for key, recording in runner.req_graph.recordings().items()}
    for unit in runner.units():
        for (phase, rows), recording in unit.recordings().items():
            found[f"token {unit.name} {rows}{'' if phase is None else ' ' + phase}"] = recording
    return found


def _check(runner: ModelRunner) -> None:
    sizes, limit = runner.capture_sizes, runner.config.max_num_seqs
    if sizes and max(sizes) > limit:
        raise ValueError(
            f"the ladder reaches {max(sizes)} requests and max_num_seqs is {limit}; drop what cannot be scheduled"
        )
