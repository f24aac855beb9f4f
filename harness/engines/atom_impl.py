"""`atom_impl` behind the harness's door. The only file of the harness that imports it."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import atom_impl
from atom_impl.compilation.compiler_manager import CACHE_FILE
from atom_impl.config import OP_BACKENDS, CompilationConfig, CompilationLevel, Config, CUDAGraphMode
from atom_impl.device import is_debug, set_debug_replay
from atom_impl.device.base import Device
from atom_impl.device.software import SoftwareDevice, SoftwareGraph
from atom_impl.device.software.bodies import body_of
from atom_impl.device.software.host import is_host
from atom_impl.graphs.recording import Recording, Segment
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.capture import recordings_of
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_engine.staging import Tail
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.model_loader.parameters import EMBEDDING, LM_HEAD
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.region_graph import reset_graph_pool
from atom_impl.utils.step_ledger import Fallback, StepRecord
from harness.cells import Cell
from harness.engines.anatomy import Anatomy, anatomy_of
from harness.engines.base import (
    Arm,
    Dispatch,
    Engine,
    EngineSession,
    PadFill,
    Phase,
    SessionSpec,
    StepBatch,
    StepResult,
    Support,
)
from harness.engines.census import Boundary, observe
from harness.engines.gpu_census import observe_gpu
from harness.engines.observed import Observed

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
LEVELS = range(CompilationLevel.PIECEWISE + 1)
_RECORDED: tuple[type, ...] = (SoftwareGraph, torch.cuda.CUDAGraph)
#: eager by the guide's own words or by the profile's stated policy
POLICY = {Fallback.ABOVE_LADDER, Fallback.NO_PREFILL_BUCKET}


@dataclass
class _Build:
    """Weights and models of one (model, level, dtype), shared by the sessions of one process."""

    model: Any
    config: Config  # that the model was built with
    eager_model: Any
    eager_config: Config
    weights: Mapping[str, torch.Tensor]
    compiles: dict[str, int] = field(default_factory=dict)


class AtomImpl(Engine):
    name = "atom_impl"

    def __init__(self) -> None:
        self._builds: dict[tuple[Any, ...], _Build] = {}

    def versions(self) -> Mapping[str, str]:
        return {"atom_impl": atom_impl.__version__, "torch": torch.__version__}

    def supports(self, cell: Cell) -> Support:
        """Raises `ValueError` for values that no cell can have; returns a reason for cells that are declared, not
        run.
        """
        mode = CUDAGraphMode.from_name(cell["mode"])
        if cell["level"] not in LEVELS:
            raise ValueError(f"level {cell['level']!r}: no such level; choose one of {', '.join(map(str, LEVELS))}")
        resolve_model(cell["model"])
        if cell["op_backend"] not in OP_BACKENDS:
            raise ValueError(
                f"op_backend {cell['op_backend']!r}: no such backend; choose one of {', '.join(OP_BACKENDS)}"
            )
        if cell["op_backend"] == "aiter":
            return Support(False, "op backend 'aiter' has no attention body in this engine; it has torch and triton")
        if cell["ranks"] != 1:
            return Support(False, f"{cell['ranks']} ranks: this engine runs one")
        eager_prefill = not mode.uses_tr_hybrid() and mode is not CUDAGraphMode.NONE
        if cell["workload"] == "prefill" and eager_prefill:
            return Support(False, f"prefill is eager under {mode.name}; it is measured in the cell with mode NONE")
        return Support(True)

    def prepare(self, cell: Cell) -> None:
        resolve_model(cell["model"]).tokenizer()  # reads from the converted folder, which is made when it is missing

    def open(self, cell: Cell, spec: SessionSpec) -> AtomSession:
        if spec.options.get("debug_replay"):
            set_debug_replay(True)
        config = _config(cell, spec)
        axes = (cell["model"], cell["level"], cell["op_backend"])
        key = (*axes, spec.dtype, spec.device, spec.max_model_len, spec.block_size)
        before = compilation_counter.as_dict()
        if key not in self._builds:
            self._builds[key] = _build(cell, spec, config)
        return AtomSession(config, spec, self._builds[key], before)


def _config(cell: Cell, spec: SessionSpec, *, eager: bool = False, dtype: str | None = None) -> Config:
    source = resolve_model(cell["model"])
    ladder = list(cell["ladder"]) if cell["ladder"] is not None else None
    return Config(
        model=cell["model"],
        hf_config=source.config,
        dtype=DTYPES[dtype or spec.dtype],
        device=spec.device,
        max_num_seqs=spec.max_num_seqs,
        max_model_len=spec.max_model_len,
        max_num_batched_tokens=max(spec.max_model_len, spec.max_num_seqs, *spec.prefill_sizes),
        kv_cache_block_size=spec.block_size,
        num_kvcache_blocks=spec.num_blocks,
        prefill_capture_sizes=list(spec.prefill_sizes),
        eager_above_ladder=spec.eager_above_ladder,
        pad_poison_row=True,
        op_backend=cell["op_backend"],
        compilation_config=CompilationConfig(
            level=0 if eager else cell["level"],
            cudagraph_mode=CUDAGraphMode.NONE if eager else CUDAGraphMode.from_name(cell["mode"]),
            cudagraph_capture_sizes=ladder,
        ),
    )


def _build(cell: Cell, spec: SessionSpec, config: Config) -> _Build:
    weights = resolve_model(cell["model"]).weights(config.dtype, torch.device(spec.device))
    eager_config = _config(cell, spec, eager=True)
    eager_model = load_model(eager_config, weights)
    if cell["level"] == CompilationLevel.NO_COMPILATION:
        return _Build(eager_model, eager_config, eager_model, eager_config, weights)
    return _Build(load_model(config, weights), config, eager_model, eager_config, weights)


class AtomSession(EngineSession):
    """One cell's runners: R and C are the cell's own, E the same weights at level 0, REF a float64 copy made when
    asked for.
    """

    def __init__(self, config: Config, spec: SessionSpec, build: _Build, before: dict[str, int]) -> None:
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
            **_pools(self._runner.device, by_rows),
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
        return StepResult(output.hidden_states, output.logits, _claim(output.record))

    def observed(self, batch: StepBatch, arm: Arm, *, rows: int | None = None) -> Observed:
        on_gpu = self._runner.device.type == "cuda"
        boundary = Boundary(
            graph_class=torch.cuda.CUDAGraph if on_gpu else SoftwareGraph,
            recorded=lambda graph: graph.entries(),
            body_of=body_of,
            is_host=lambda tensor: is_host(tensor.untyped_storage()) or (on_gpu and not tensor.is_cuda),
            outputs=list(self._runner.outputs()),
            pools=_pool_handles(recordings_of(self._runner).values()),
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
        hashes = {name: _sha(recording.topology()) for name, recording in recordings_of(self._runner).items()}
        return hashes | _code_hashes(self._build.config) | {"weights": _weight_hash(self._build.weights)}

    def expected(self) -> Mapping[str, Any]:
        config = self._runner.config
        return {
            "layers": self._model_config.num_hidden_layers,
            "hidden_size": self._model_config.hidden_size,
            "split_ops_per_layer": 1,
            "itemsize": config.dtype.itemsize,
            "block_table_width": self._runner.staging.table_width,
            "staging": self._runner.staging.layout(),
            "weight_bytes": _step_weight_bytes(self._build.weights),
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
            self._reference = _reference_runner(self._eager.config, self._build.weights)
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


def _reference_runner(source: Config, weights: Mapping[str, torch.Tensor]) -> ModelRunner:
    """The eager model in float64, from the weights as rounded to the lane's dtype."""
    config = Config(
        model=source.model,
        hf_config=source.hf_config,
        dtype=torch.float64,
        device=source.device,
        max_num_seqs=source.max_num_seqs,
        max_model_len=source.max_model_len,
        max_num_batched_tokens=source.max_num_batched_tokens,
        kv_cache_block_size=source.kv_cache_block_size,
        num_kvcache_blocks=source.num_kvcache_blocks,
        pad_poison_row=source.pad_poison_row,
    )
    return ModelRunner(config, load_model(config, {name: tensor.double() for name, tensor in weights.items()}))


def _pools(device: Device, recordings: Mapping[int, Recording]) -> dict[str, Any]:
    """In which pools each bucket's graphs lie and how large those are, as the graphs say: the runner names one pool."""
    names: dict[Any, str] = {}
    homes: dict[int, list[str]] = {}
    for rows, recording in recordings.items():
        for graph in (step.graph for step in recording.steps if isinstance(step, Segment)):
            handle: Any = graph.pool()
            name = names.setdefault(handle, f"pool {len(names) + 1}")
            if name not in homes.setdefault(rows, []):
                homes[rows].append(name)
    return {"pools": homes, "pool_sizes": {name: device.pool_bytes(handle) for handle, name in names.items()}}


def _pool_handles(recordings: Iterable[Recording]) -> list[Any]:
    """The pools of all recorded graphs, each once, as the graphs say. A segment that runs eagerly has none."""
    graphs = [graph for recording in recordings for graph in recording.graphs()]
    return list(dict.fromkeys(graph.pool() for graph in graphs if isinstance(graph, _RECORDED)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor's bytes, so that NaN equals itself."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _claim(record: StepRecord) -> dict[str, Any]:
    claim = dict(vars(record))  # shallow: this runs inside every timed step
    claim["copies"] = {kind.value: {"count": copy.count, "bytes": copy.bytes} for kind, copy in record.copies.items()}
    claim["fallback"] = None if record.fallback is None else record.fallback.value
    return claim


def _step_weight_bytes(weights: Mapping[str, torch.Tensor]) -> int:
    """Bytes of the weights that every step reads whole; an embedding is read by the row, unless it is the LM head."""
    apart = LM_HEAD in weights and weights[LM_HEAD].data_ptr() != weights[EMBEDDING].data_ptr()
    storages = {tensor.data_ptr(): tensor.nbytes for name, tensor in weights.items() if name != EMBEDDING or not apart}
    return sum(storages.values())


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _weight_hash(weights: Mapping[str, torch.Tensor]) -> str:
    """Shapes and dtypes: what code depends on. The values are the model's identity, which the cell names."""
    return _sha("\n".join(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}" for name, tensor in weights.items()))


def _code_hashes(config: Config) -> dict[str, str]:
    """Compiled pieces by their graphs, and the files that Inductor generated for them, as the cache's manifests list
    them.
    """
    folder = config.compilation_config.local_cache_dir
    if folder is None or not (Path(folder) / CACHE_FILE).is_file():
        return {}
    sources: dict[str, str] = {}
    for manifest in Path(folder).glob("*/manifest.json"):
        files: dict[str, str] = json.loads(manifest.read_text())["files"]
        sources |= {digest: Path(name).suffix for name, digest in files.items() if Path(name).suffix in (".cpp", ".py")}
    table = (Path(folder) / CACHE_FILE).read_text()
    hashes = {"pieces": _sha(table), "generated code": _sha("\n".join(sorted(sources)))}
    return hashes | _distinct_pieces(ast.literal_eval(table))


def _distinct_pieces(table: Mapping[tuple[int | None, int, str], tuple[str, ...]]) -> dict[str, str]:
    """A hash for each distinct piece, by the first place where it stands."""
    named: dict[str, str] = {}
    for (shape, index, _), handle in sorted(table.items(), key=lambda entry: entry[0][1]):
        named.setdefault(handle[0], f"piece {index}{'' if shape is None else f' for {shape} rows'}")
    return {title: _sha(name) for name, title in named.items()}
