"""The only door between the harness and an engine.

The harness never touches an engine's inside: it opens a cell, drives steps in named arms, and reads what the engine
claims. An upstream engine, a peer or ours fits behind these two classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from harness.cells import Cell
from harness.engines.anatomy import Anatomy
from harness.engines.observed import Observed

if TYPE_CHECKING:
    from harness.profile import Profile


class Arm(str, Enum):
    """The four ways in which one step is computed; neighbours differ by one variable."""

    E = "E"  # eager: level 0, no graph
    C = "C"  # the cell's level, no graph
    R = "R"  # the cell's level and graph mode, through the engine's own dispatch
    REF = "REF"  # the same model in float64 from the dtype-rounded weights and inputs


class Phase(str, Enum):
    DECODE = "decode"
    PREFILL = "prefill"


class PadFill(str, Enum):
    """What the harness writes into pad rows' ids, positions, lengths, slots and block tables before a step."""

    ENGINE = "engine"  # whatever the engine itself writes
    ZERO = "zero"
    EXTREME = "extreme"  # largest legal ids, positions and lengths; slots and blocks far outside
    PREVIOUS = "previous"  # the tail of the previous step, left in place
    NAN_HIDDEN = "nan_hidden"  # pad rows' hidden states are NaN


@dataclass(frozen=True)
class StepBatch:
    """What a scheduler hands to an engine for one step.

    `token_ids[i]` are request i's new tokens, `context_lens[i]` its length after the step (cached + new), and
    `block_tables[i]` the KV blocks that hold it. Decode: one token a request. Prefill: a whole prompt.
    """

    phase: Phase
    token_ids: tuple[tuple[int, ...], ...]
    context_lens: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        """Live hidden-state rows."""
        return sum(map(len, self.token_ids))


@dataclass
class StepResult:
    """`hidden`: [live rows, hidden size]. `logits`: [live rows, vocabulary]. Both are the engine's own tensors: copy
    to keep.

    `claim` is the engine's ledger record of the step as a plain dict; its `padded_rows` counts pad rows alone (see
    `atom_impl.utils.step_ledger.StepRecord`).
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    claim: Mapping[str, Any]


@dataclass(frozen=True)
class Dispatch:
    """Where a step of this shape will run: `mode` is a `CUDAGraphMode` name, `bucket` its padded rows, `reason` why
    eager.

    `declared` says that running eagerly is the profile's stated policy; an undeclared eager step is a hole in the
    ladder.
    """

    phase: Phase
    batch: int
    rows: int
    mode: str
    bucket: int | None
    reason: str = ""
    declared: bool = False


@dataclass(frozen=True)
class Support:
    """Whether an engine takes a cell. `declared_eager` names the cell that already measures the same eager path."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class SessionSpec:
    """How a cell is opened: the lane's dtype, the device, and the limits that the profile states."""

    dtype: str  # "float32" or "bfloat16"
    device: str  # "cpu" or "cuda"
    max_num_seqs: int
    max_model_len: int
    block_size: int
    num_blocks: int
    prefill_sizes: tuple[int, ...] = ()
    eager_above_ladder: bool = False  # the profile's stated policy for batches above the ladder
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: Profile, dtype: str, device: str, **options: Any) -> SessionSpec:
        """As `profile` states it. What `options` mean is the engine's to say."""
        limits = profile.limits
        return cls(
            dtype=dtype,
            device=device,
            max_num_seqs=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            block_size=limits.block_size,
            num_blocks=limits.num_blocks,
            prefill_sizes=tuple(profile.prefill_sizes),
            eager_above_ladder=limits.eager_above_ladder,
            options=options,
        )


class EngineSession(ABC):
    """One cell, opened in this process. All arms share weights; E, C and R share the KV cache."""

    @property
    @abstractmethod
    def vocab_size(self) -> int: ...

    def encoder(self) -> Callable[[str], Sequence[int]] | None:
        """Text to the model's own tokens; None for a model that was never trained on text."""
        return None

    @abstractmethod
    def capture(self) -> Mapping[str, Any]:
        """Warm up, compile and record everything the cell's mode asks for. Returns what the engine claims of it:

        `capture_s`, `compile_s`, `buckets` {phase: [rows]}, `segments` and `regions` {bucket: n}, `nodes` {bucket: n},
        `pool_bytes`, `pool_bytes_largest` (after the largest bucket alone), `compiles` (deltas of the compile
        counters), `kernels` (generated kernels of each distinct piece, by its name), and `debug_replay`: whether
        segments run eagerly in place of recorded graphs, as `options["debug_replay"]` asks. From the graphs rather than
        the engine's books, where the adaptor can: `pools` {bucket: [names]} and `pool_sizes` {name: bytes}.
        """

    @abstractmethod
    def step(self, batch: StepBatch, arm: Arm, *, rows: int | None = None, pad: PadFill = PadFill.ENGINE) -> StepResult:
        """Run one step. `rows` pads it to that many rows in arms E, C and REF; arm R dispatches as the engine would."""

    def observed(self, batch: StepBatch, arm: Arm, *, rows: int | None = None) -> Observed | None:
        """Run one step, as `step` does, and count it from outside the engine's ledger; None if nobody can."""
        return None

    def anatomy(self, batch: StepBatch) -> Anatomy | None:
        """Run one step in arm R under a profiler and say where its time went; None if nobody can."""
        return None

    def carried_over(self, batch: StepBatch) -> Sequence[str] | None:
        """Replay one step and say what its recording read as it found it and left changed; None if nobody can tell.

        Such memory hands one replay's values to the next: a counter that only its allocation cleared, a stale sum.
        """
        return None

    @abstractmethod
    def plan(self, phase: Phase, batch: int, rows: int) -> Dispatch:
        """Where arm R would run a step of `batch` requests and `rows` rows, without running it."""

    @abstractmethod
    def kv(self) -> Sequence[torch.Tensor]:
        """The KV cache as live tensors [blocks, block size, ...], scratch left out. The harness snapshots, compares,
        poisons.
        """

    @abstractmethod
    def poison_outputs(self) -> None:
        """Fill every buffer that the next replay must write with NaN, so that an output it did not write is seen."""

    @abstractmethod
    def synchronize(self) -> None: ...

    @abstractmethod
    def counters(self) -> Mapping[str, int | float]:
        """Running totals that the engine claims (compiles, recompiles, fallbacks by reason, replayed steps, ...)."""

    @abstractmethod
    def artefacts(self) -> Mapping[str, str]:
        """Hashes of what runs: FX graphs, generated code, recording topology. Same hashes mean same code."""

    @abstractmethod
    def expected(self) -> Mapping[str, Any]:
        """The model facts that closed forms need: `layers`, `hidden_size`, `split_ops_per_layer`, `itemsize`,
        `block_table_width`. For the floor of a step's time: `weight_bytes`, `kv_bytes_per_token`.
        """

    @abstractmethod
    def close(self) -> None: ...


class Engine(ABC):
    """An engine as installed. Cheap to construct: it loads nothing before `open`."""

    name: str

    @abstractmethod
    def versions(self) -> Mapping[str, str]: ...

    @abstractmethod
    def supports(self, cell: Cell) -> Support: ...

    def prepare(self, cell: Cell) -> None:  # noqa: B027  an engine that needs nothing keeps this
        """Fetch and convert what the cell needs, once and before any worker starts. Raises for weights it cannot
        use.
        """

    @abstractmethod
    def open(self, cell: Cell, spec: SessionSpec) -> EngineSession:
        """Build the cell. Sessions of the same model, level and dtype may share weights and compiled code."""
