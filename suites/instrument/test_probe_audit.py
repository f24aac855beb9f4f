"""Guards against a ledger that is believed because it is the engine's own: a clone that nobody notes, a launch that
never happened, a copy that was counted twice.

Each fault is planted in a running engine that leaves its ledger as it was; the control is the same engine without it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from atom_impl.device import get_device
from atom_impl.graphs.recording import Recording, Segment
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_engine.staging import CpuGpuBuffer
from atom_impl.models.llama import LlamaDecoderLayer
from atom_impl.utils.region_graph import current_session, graph_pool
from atom_impl.utils.step_ledger import CopyKind, StepRecord
from harness.cells import Cell
from harness.engines.atom_impl import AtomImpl, AtomSession
from harness.engines.atom_impl.account import claim_of
from harness.engines.base import SessionSpec
from harness.probes.audit import AuditProbe
from harness.probes.base import ProbeContext, ProbeResult
from harness.profile import Axes, Numerics, Profile, Timing
from harness.records import Status
from harness.verdicts import lane_fate
from suites.instrument.probe_bench import LIMITS, context_of, failed, gate

Audit = Callable[..., ProbeResult]


@pytest.fixture
def audit(model_name: str, device: str) -> Audit:
    """Open a cell, capture, audit; `dtype` and the cell's axes may be given."""

    def run(level: int, mode: str, workload: str = "decode", dtype: str = "float32") -> ProbeResult:
        ladder = [1, 2, 4]
        cell = Cell.of(model=model_name, level=level, mode=mode, workload=workload, ladder=ladder)
        axes = Axes(model=[model_name], level=[level], mode=[mode], workload=[workload], ladder=[ladder])
        prefill_sizes = [8, 24] if mode in ("TR_HYBRID", "NONE") else []
        profile = Profile(
            name="audit",
            title="audit",
            axes=axes,
            limits=LIMITS,
            prefill_sizes=prefill_sizes,
            numerics=Numerics(input_sets=3, replays=1),
            timing=Timing(),
        )
        spec = SessionSpec(dtype, device, 5, 64, 8, 48, tuple(prefill_sizes), eager_above_ladder=True)
        session = AtomImpl().open(cell, spec)
        try:
            context = ProbeContext(session, cell, spec, profile, "serving", device, dict(session.capture()))
            return AuditProbe().run(context)
        finally:
            session.close()

    return run


def in_recordings(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The decoder layer with `change` on its input, where a recording is made and nowhere else."""
    plain = LlamaDecoderLayer.forward

    def forward(self: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return plain(self, change(x) if current_session() is not None else x, cos, sin)

    return forward


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("level", "mode", "workload"),
    [
        (level, mode, workload)
        for level in (0, 3)
        for mode, workload in [
            ("NONE", "decode"),
            ("NONE", "prefill"),
            ("TR_HYBRID", "decode"),
            ("TR_HYBRID", "prefill"),
            ("FULL", "decode"),
        ]
    ],
)
def test_an_engine_without_a_fault_is_never_accused(
    audit: Audit, level: int, mode: str, workload: str, dtype: str
) -> None:
    result = audit(level, mode, workload, dtype)
    assert failed(result) == set()
    assert {g.gate for g in result.gates if g.status is Status.PASS} >= {"audit.launches", "audit.copies"}


def test_what_was_counted_is_kept_for_baselines(audit: Audit) -> None:
    counted = audit(0, "TR_HYBRID").counters["audit"]
    assert set(counted) == {"1", "2", "4"}
    assert counted["4"]["launches"] == 3
    assert counted["4"]["regions"] == 2
    output = [copy for name, copy in counted["4"]["copies"].items() if name.startswith("output ")]
    assert output == [{"count": 1, "bytes": 4 * 64 * 4}]


@pytest.mark.parametrize("mode", ["TR_HYBRID", "FULL"])
def test_a_clone_in_the_decoder_layer_that_only_recordings_make_is_named(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(LlamaDecoderLayer, "forward", in_recordings(torch.clone))
    result = audit(0, mode)
    assert "audit.copies" in failed(result)
    assert "2 device copies beyond the plain step's" in gate(result, "audit.copies").message
    assert "256 bytes in a recording" in gate(result, "audit.copies").message
    assert lane_fate(result.gates)[0].value == "wrong"


def test_a_contiguous_copy_that_only_recordings_make_is_named(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    def transposed_and_back(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t()

    monkeypatch.setattr(LlamaDecoderLayer, "forward", in_recordings(transposed_and_back))
    assert failed(audit(0, "FULL")) & {"audit.copies", "audit.operations"}


def test_a_clone_in_the_decoder_layer_that_every_arm_makes_is_named_with_its_place(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LlamaDecoderLayer.forward

    def forward(self: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return plain(self, x.clone(), cos, sin)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", forward)
    result = audit(0, "NONE")
    assert failed(result) == {"audit.copies"}
    message = gate(result, "audit.copies").message
    assert "2 clones that keep their source's layout, and the engine declares 0 (clones_per_step)" in message
    assert "test_probe_audit.py" in message


def test_clones_that_the_engine_declares_are_its_own_affair(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, stated = LlamaDecoderLayer.forward, AtomSession.expected

    def forward(self: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return plain(self, x.clone(), cos, sin)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", forward)
    monkeypatch.setattr(AtomSession, "expected", lambda self: dict(stated(self)) | {"clones_per_step": 2})
    assert failed(audit(0, "TR_HYBRID")) == set()


@pytest.mark.parametrize("level", [0, 3])
def test_a_copy_of_the_runner_that_the_ledger_does_not_know_is_named(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    plain = ModelRunner.run_model

    def run_model(self: Any, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, hidden = plain(self, input_ids)
        replays = self.capture_report is not None and hidden.data_ptr() in {t.data_ptr() for t in self.outputs()}
        return logits, hidden.clone() if replays else hidden

    monkeypatch.setattr(ModelRunner, "run_model", run_model)
    for mode in ("TR_HYBRID", "FULL"):
        result = audit(level, mode)
        assert failed(result) == {"audit.copies"}
        assert "device copy beyond the plain step's" in gate(result, "audit.copies").message


@pytest.mark.parametrize("level", [0, 3])
def test_a_second_copy_into_the_output_buffer_is_not_the_one_claimed(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    plain = ModelRunner._full_forward

    def twice(self: Any, input_ids: torch.Tensor, positions: torch.Tensor) -> None:
        plain(self, input_ids, positions)
        half = self.forward_vars["outputs"][: input_ids.shape[0]]
        half.copy_(half + 0)

    monkeypatch.setattr(ModelRunner, "_full_forward", twice)
    result = audit(level, "FULL")
    assert {"audit.output", "audit.operations"} <= failed(result)
    assert "2 copies into output buffers" in gate(result, "audit.output").message


def unnoted(self: CpuGpuBuffer, count: int, record: StepRecord) -> torch.Tensor:
    return self.gpu[:count].copy_(self.cpu[:count], non_blocking=True)


def noted_only(self: CpuGpuBuffer, count: int, record: StepRecord) -> torch.Tensor:
    record.copied(CopyKind.STAGING, self.gpu[:count].nbytes)
    if count > 1:
        self.gpu[:count].copy_(self.cpu[:count], non_blocking=True)
    return self.gpu[:count]


@pytest.mark.parametrize(("copy", "says"), [(unnoted, "0 of 0 claimed"), (noted_only, "and 7 of")])
def test_staging_that_does_not_copy_what_it_notes_is_seen(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, copy: Callable[..., Any], says: str
) -> None:
    monkeypatch.setattr(CpuGpuBuffer, "copy_to_gpu", copy)
    result = audit(0, "NONE")
    assert failed(result) == {"audit.staging"}
    assert says in gate(result, "audit.staging").message


def test_a_segment_that_is_claimed_and_not_launched_is_seen(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Recording.replay

    def without_the_last(self: Recording, *args: Any, **kwargs: Any) -> Any:
        last = self.steps[-1]
        assert isinstance(last, Segment)
        self.steps[-1] = Segment(_Silent(), last.nodes)  # type: ignore[arg-type]
        try:
            return plain(self, *args, **kwargs)
        finally:
            self.steps[-1] = last

    monkeypatch.setattr(Recording, "replay", without_the_last)
    result = audit(0, "TR_HYBRID")
    assert {"audit.launches", "audit.nodes", "audit.operations"} <= failed(result)
    assert "2 graphs launched and 3 segments claimed" in gate(result, "audit.launches").message


class _Silent:
    """A graph whose replay launches nothing."""

    def replay(self) -> None: ...


def test_a_graph_that_is_launched_twice_is_seen(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Recording.replay

    def and_again(self: Recording, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        self.steps[-1].graph.replay()  # type: ignore[union-attr]
        return result

    monkeypatch.setattr(Recording, "replay", and_again)
    result = audit(0, "FULL")
    assert {"audit.launches", "audit.nodes", "audit.output"} <= failed(result)


def claiming(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let the engine claim `changes` of every step that was asked to use graphs."""
    plain = claim_of

    def claim(record: StepRecord) -> dict[str, Any]:
        return plain(record) | (changes if record.requested_mode != "NONE" and record.segments else {})

    monkeypatch.setattr("harness.engines.atom_impl.session.claim_of", claim)


@pytest.mark.parametrize(
    ("changes", "gates", "says"),
    [
        ({"regions": 3}, {"audit.regions"}, "regions claimed"),
        ({"segments": 4}, {"audit.launches"}, "3 graphs launched and 4 segments claimed"),
        ({"effective_mode": "NONE"}, {"audit.mode"}, "without a reason"),
        ({"effective_mode": "FULL", "requested_mode": "FULL"}, {"audit.mode"}, "asks for TR_HYBRID"),
    ],
)
def test_a_claim_that_the_launches_do_not_bear_out_is_wrong(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], gates: set[str], says: str
) -> None:
    if "regions" in changes:
        changes = {**changes, "segments": 4}
        gates = gates | {"audit.launches"}
    claiming(monkeypatch, **changes)
    result = audit(0, "TR_HYBRID")
    assert failed(result) == gates
    assert any(says in gate(result, name).message for name in gates)


def test_a_step_that_quietly_runs_eagerly_is_wrong_in_mode_and_replay_share(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ModelRunner.step
    monkeypatch.setattr(ModelRunner, "step", functools.partialmethod(_without_graphs, plain))
    result = audit(0, "FULL")
    assert failed(result) == {"audit.mode", "audit.replay_share"}
    assert gate(result, "audit.replay_share").measured == 0.0
    assert "has bucket 1 and launched no graph" in gate(result, "audit.mode").message


def _without_graphs(self: Any, plain: Callable[..., Any], batch: Any, **kwargs: Any) -> Any:
    """Run eagerly in the bucket's rows, and say that nothing was asked for."""
    rows = kwargs.pop("rows", None) or min(size for size in (1, 2, 4) if size >= batch.requests)
    output = plain(self, batch, graphs=False, rows=rows)
    output.record.fallback = None
    return output


def test_an_engine_that_nobody_can_count_is_said_to_be_unaudited() -> None:
    result = AuditProbe().run(context_of())
    assert [(g.gate, g.status) for g in result.gates] == [("audit", Status.NOT_APPLICABLE)]
    assert "stays a claim" in result.gates[0].message


def test_a_region_that_takes_its_temporaries_from_the_pool_is_named_with_its_line(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Recording._run_region

    def in_the_pool(self: Any, region: Any, record: Any) -> None:
        with get_device().allocating(graph_pool()):
            plain(self, region, record)

    monkeypatch.setattr(Recording, "_run_region", in_the_pool)
    result = audit(0, "TR_HYBRID")
    assert "audit.pool" in failed(result)
    message = gate(result, "audit.pool").message
    assert "arm R took" in message
    assert "from the recordings' pool outside a capture" in message
    assert ".py:" in message
    assert "arm C" not in message


@pytest.mark.parametrize("mode", ["TR_HYBRID", "FULL"])
def test_a_plain_step_that_takes_a_block_of_the_pool_is_named_too(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    plain = LlamaDecoderLayer.forward

    def forward(self: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if current_session() is None:
            with get_device().allocating(graph_pool()):
                torch.empty_like(x)
        return plain(self, x, cos, sin)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", forward)
    assert "arm C took 2 blocks" in gate(audit(0, mode), "audit.pool").message


def test_temporaries_from_ordinary_memory_are_no_use_of_the_pool(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Recording._run_region

    def beside_the_pool(self: Any, region: Any, record: Any) -> None:
        scratch = torch.empty(1 << 16, device=get_device().torch_device)
        plain(self, region, record)
        del scratch

    monkeypatch.setattr(Recording, "_run_region", beside_the_pool)
    found = gate(audit(0, "TR_HYBRID"), "audit.pool")
    assert (found.status, found.measured) == (Status.PASS, 0.0)


def test_without_a_recording_there_is_no_pool_to_judge(audit: Audit) -> None:
    assert gate(audit(0, "NONE"), "audit.pool").status is Status.NOT_APPLICABLE
