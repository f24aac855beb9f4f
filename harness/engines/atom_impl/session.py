"""One cell of `atom_impl`, opened: its runners, driven a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from atom_impl.config import Config
from atom_impl.device import is_debug
from atom_impl.device.software import SoftwareDevice, SoftwareGraph
from atom_impl.device.software.bodies import body_of
from atom_impl.device.software.host import is_host
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.capture import recordings_of
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_engine.staging import Tail
from atom_impl.model_loader import resolve_model
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.region_graph import reset_graph_pool
from atom_impl.utils.step_ledger import Fallback
from harness.engines.anatomy import Anatomy, anatomy_of
from harness.engines.atom_impl.account import claim_of, pool_handles, pools_of, step_weight_bytes
from harness.engines.atom_impl.artefacts import code_hashes, sha, weight_hash
from harness.engines.atom_impl.build import Build, reference_runner
from harness.engines.base import (
    Arm,
    Dispatch,
    EngineSession,
    PadFill,
    Phase,
    SessionSpec,
    StepBatch,
    StepResult,
)
from harness.engines.census import Boundary, observe
from harness.engines.gpu_census import observe_gpu
from harness.engines.observed import Observed

#: eager by the guide's own words or by the profile's stated policy
POLICY = {Fallback.ABOVE_LADDER, Fallback.NO_PREFILL_BUCKET}


class AtomSession(EngineSession):
    """One cell's runners: R and C are the cell's own, E the same weights at level 0, REF a float64 copy made when
    asked for.
    """

    def __init__(self, config: Config, spec: SessionSpec, build: Build, before: dict[str, int]) -> None:
        self._spec, self._build, self._before = spec, build, before
        layers = build.config.compilation_config.static_forward_context
        config.compilation_config.static_forward_context = layers
        self._runner = ModelRunner(config, build.model)
        self._eager = ModelRunner(build.eager_config, build.eager_model, kv_cache=self._runner.kv_cache)
        self._reference: ModelRunner | None = None

    @property
    def vocab_size(self) -> int:
        return self._model_config.vocab_size

    @property
    def _model_config(self) -> Any:
        return self._runner.config.hf_config

    def encoder(self) -> Callable[[str], Sequence[int]] | None:
        tokenizer = resolve_model(self._runner.config.model).tokenizer()
        return None if tokenizer is None else lambda text: list(tokenizer.encode(text).ids)

    def capture(self) -> Mapping[str, Any]:
        seconds, _ = self._runner.capture_cudagraph()
        report = self._runner.capture_report
        if report is None:
            raise RuntimeError("capture_cudagraph() left no report")
        recordings = recordings_of(self._runner).values()
        self._count_compiles()
        by_rows = {recording.rows: recording for recording in recordings}
        return {
            "capture_s": report.seconds,
            "start_s": seconds,
            "compile_s": self._runner.config.compilation_config.compilation_time,
            "buckets": report.buckets,
            "segments": {rows: recording.segments for rows, recording in by_rows.items()},
            "regions": {rows: recording.regions for rows, recording in by_rows.items()},
            "nodes": {rows: recording.nodes for rows, recording in by_rows.items()},
            "bucket_s": report.bucket_seconds,
            "pool_bytes": report.pool_bytes,
            "pool_bytes_largest": report.pool_bytes_largest,
            **pools_of(self._runner.device, by_rows),
            "compiles": dict(self._build.compiles),
            "debug_replay": is_debug(self._runner.device),
            "kernels": dict(self._build.config.compilation_config.generated_kernels),
        }

    def _count_compiles(self) -> None:
        """Add what the process compiled since the last look to this build's account."""
        now, totals = compilation_counter.as_dict(), self._build.compiles
        for name, count in now.items():
            totals[name] = totals.get(name, 0) + count - self._before.get(name, 0)
        self._before = now

    def step(self, batch: StepBatch, arm: Arm, *, rows: int | None = None, pad: PadFill = PadFill.ENGINE) -> StepResult:
        runner = self._runner_of(arm)
        scheduled = ScheduledBatch(
            batch.phase is Phase.PREFILL, batch.token_ids, batch.context_lens, batch.block_tables
        )
        runner.staging.tail = self._tail(pad)
        try:
            if arm is Arm.R:
                if rows is not None:
                    raise ValueError("arm R picks its own bucket; `rows` is for arms E, C and REF")
                output = runner.step(scheduled)
            else:
                output = runner.step(scheduled, graphs=False, rows=rows)
        finally:
            runner.staging.tail = Tail()
        return StepResult(output.hidden_states, output.logits, claim_of(output.record))

    def observed(self, batch: StepBatch, arm: Arm, *, rows: int | None = None) -> Observed:
        on_gpu = self._runner.device.type == "cuda"
        boundary = Boundary(
            graph_class=torch.cuda.CUDAGraph if on_gpu else SoftwareGraph,
            recorded=lambda graph: graph.entries(),
            body_of=body_of,
            is_host=lambda tensor: is_host(tensor.untyped_storage()) or (on_gpu and not tensor.is_cuda),
            outputs=list(self._runner.outputs()),
            pools=pool_handles(recordings_of(self._runner).values()),
        )
        count = observe_gpu if on_gpu else observe
        return count(lambda: self.step(batch, arm, rows=rows), boundary)

    def anatomy(self, batch: StepBatch) -> Anatomy:
        on_gpu = self._runner.device.type == "cuda"
        graph_class: type = torch.cuda.CUDAGraph if on_gpu else SoftwareGraph
        return anatomy_of(lambda: self.step(batch, Arm.R), graph_class, self.synchronize, on_gpu)

    def carried_over(self, batch: StepBatch) -> Sequence[str] | None:
        device = self._runner.device
        if not isinstance(device, SoftwareDevice):
            return None
        suspects = [
            found
            for recording in recordings_of(self._runner).values()
            for found in device.reads_before_writes(recording.graphs())
        ]
        before = [_bytes(suspect.tensor) for suspect in suspects]
        self.step(batch, Arm.R)
        return [
            f"{list(suspect.tensor.shape)} {str(suspect.tensor.dtype).removeprefix('torch.')} is read as found by "
            f"{suspect.read_by}, and left changed by {suspect.written_by}"
            for suspect, held in zip(suspects, before, strict=True)
            if not torch.equal(held, _bytes(suspect.tensor))  # a kernel that restores its counter leaves no trace
        ]

    def plan(self, phase: Phase, batch: int, rows: int) -> Dispatch:
        mode = self._runner.decide(is_prefill=phase is Phase.PREFILL, requests=batch, rows=rows)
        replays = mode.effective != "NONE"
        reason = mode.fallback
        policy = reason is Fallback.PREFILL_EAGER or (reason in POLICY and self._spec.eager_above_ladder)
        return Dispatch(
            phase=phase,
            batch=batch,
            rows=rows,
            mode=mode.effective,
            bucket=mode.running_tokens if replays else None,
            reason="" if reason is None else reason.value,
            declared=replays or reason is None or policy,
        )

    def kv(self) -> Sequence[torch.Tensor]:
        """Keys and values of every layer, without the scratch block at the end."""
        return [cache[:-1] for layer in self._runner.kv_cache.values() for cache in (layer.k_cache, layer.v_cache)]

    @torch.inference_mode()
    def poison_outputs(self) -> None:
        for buffer in self._runner.outputs():
            buffer.fill_(float("nan"))

    def synchronize(self) -> None:
        self._runner.device.synchronize()

    def counters(self) -> Mapping[str, int | float]:
        self._count_compiles()
        ledger = self._runner.ledger
        totals: dict[str, int | float] = {"steps": ledger.steps, "replayed_steps": ledger.replayed_steps}
        totals |= {f"fallback.{reason.value}": count for reason, count in ledger.fallbacks.items()}
        totals |= {f"compile.{name}": count for name, count in self._build.compiles.items()}
        return totals

    def artefacts(self) -> Mapping[str, str]:
        hashes = {name: sha(recording.topology()) for name, recording in recordings_of(self._runner).items()}
        return hashes | code_hashes(self._build.config) | {"weights": weight_hash(self._build.weights)}

    def expected(self) -> Mapping[str, Any]:
        config = self._runner.config
        return {
            "layers": self._model_config.num_hidden_layers,
            "hidden_size": self._model_config.hidden_size,
            "split_ops_per_layer": 1,
            "itemsize": config.dtype.itemsize,
            "block_table_width": self._runner.staging.table_width,
            "staging": self._runner.staging.layout(),
            "weight_bytes": step_weight_bytes(self._build.weights),
            "kv_bytes_per_token": sum(cache[0, 0].nbytes for cache in self.kv()),
        }

    def close(self) -> None:
        self._runner.close()
        self._reference = None
        reset_graph_pool()

    def _runner_of(self, arm: Arm) -> ModelRunner:
        if arm is Arm.E:
            return self._eager
        if arm is not Arm.REF:
            return self._runner
        if self._reference is None:
            self._reference = reference_runner(self._eager.config, self._build.weights)
        for name, cache in self._runner.kv_cache.items():
            self._reference.kv_cache[name].k_cache.copy_(cache.k_cache)
            self._reference.kv_cache[name].v_cache.copy_(cache.v_cache)
        return self._reference

    def _tail(self, pad: PadFill) -> Tail:
        if pad is PadFill.ZERO:
            return Tail(0, 0, 0, 0, 0)
        if pad is PadFill.EXTREME:
            longest = self._spec.max_model_len
            return Tail(self.vocab_size - 1, longest - 1, 2**40, longest, 2**30)
        if pad is PadFill.PREVIOUS:
            return Tail(None, None, None, None, None)
        if pad is PadFill.NAN_HIDDEN:
            return Tail(token_id=self.vocab_size)  # the embedding row of NaN
        return Tail()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor's bytes, so that NaN equals itself."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
