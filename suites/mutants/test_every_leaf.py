"""Whichever input of a step goes stale or moves, something sees it: a planted fault is one field, and its siblings six.

The length tensor was copied each step and the block table beside it was not; a check that had been written for the
length never looked there. These tests walk over every buffer that a step stages, with the checks that a sign-off runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from atom_impl.graphs.recording import ReplayError
from atom_impl.model_engine.staging import CpuGpuBuffer, StagingBuffers
from atom_impl.utils.step_ledger import CopyKind, StepRecord
from harness.cells import Cell
from harness.engines import get_engine
from harness.engines.base import SessionSpec
from harness.probes.audit import AuditProbe
from harness.probes.base import ProbeContext
from harness.probes.numerics import NumericsProbe
from harness.probes.trace import StepTrace
from harness.profile import Profile
from harness.records import Status

PROFILE = msgspec.toml.decode(Path(__file__).with_name("mutants.toml").read_bytes(), type=Profile)
_SMALL = StagingBuffers(
    max_rows=1,
    max_requests=1,
    max_model_len=1,
    block_size=1,
    hidden_size=1,
    dtype=torch.float32,
    device=torch.device("cpu"),
)
LEAVES = [name for name, value in vars(_SMALL).items() if isinstance(value, CpuGpuBuffer)]
#: A decode step has one row a request, so that nothing in it reads where sequences begin.
NOT_READ = {"cu_seqlens_q"}


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest) -> Iterator[ProbeContext]:
    """A two-layer model at level 0 with request graphs, captured."""
    device, limits = str(request.config.getoption("--device")).partition(":")[0], PROFILE.limits
    cell = Cell.of(model="random:tiny-llama", level=0, mode="FULL", workload="decode", ladder=[1, 2, 4])
    spec = SessionSpec(
        dtype="float32",
        device=device,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        eager_above_ladder=True,
    )
    session = get_engine("atom_impl").open(cell, spec)
    yield ProbeContext(session, cell, spec, PROFILE, "serving", device, dict(session.capture()))
    session.close()


def leaf_of(opened: ProbeContext, name: str) -> Any:
    return getattr(opened.session._runner.staging, name)  # type: ignore[attr-defined]


def failed(opened: ProbeContext) -> set[str]:
    """The gates of a sign-off that fail for this session as it is now; "ReplayError" and its text for a refusal."""
    try:
        gates = [*NumericsProbe(StepTrace()).run(opened).gates, *AuditProbe().run(opened).gates]
    except ReplayError as error:
        return {f"ReplayError: {error}"}
    return {gate.gate for gate in gates if gate.status is Status.FAIL}


def test_a_session_without_a_fault_fails_nothing(opened: ProbeContext) -> None:
    assert len(LEAVES) == len(opened.session.expected()["staging"])
    assert failed(opened) == set()


@pytest.mark.parametrize("name", LEAVES)
def test_a_copy_that_is_left_out_is_seen_whichever_leaf_it_is(
    name: str, opened: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = leaf_of(opened, name)

    def claimed(count: int, record: StepRecord) -> torch.Tensor:
        target: torch.Tensor = leaf.gpu[:count]
        record.copied(CopyKind.STAGING, target.nbytes)
        return target

    plain = leaf.copy_to_gpu
    replaying = opened.session._runner.staging  # type: ignore[attr-defined]
    stage = replaying.stage

    def stage_stale(batch: Any, mode: Any, record: Any) -> Any:
        monkeypatch.setattr(leaf, "copy_to_gpu", claimed if mode.use_cudagraph else plain)
        return stage(batch, mode, record)

    monkeypatch.setattr(replaying, "stage", stage_stale)
    found = failed(opened)
    assert "audit.staging" in found
    assert name in NOT_READ or found & {"G1", "G2", "G2.kv"}, found


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_at_another_address_is_refused_or_gives_other_bits(
    name: str, opened: ProbeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaf_of(opened, name), "gpu", leaf_of(opened, name).gpu.clone())
    found = failed(opened)
    assert "G1" in found or any(f"attn_metadata.{name} moved since the recording" in text for text in found), found
