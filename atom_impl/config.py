"""Levels, graph modes and the two config objects: data, its rules, and what really takes effect.

Upstream accepted `enforce_eager=True` and compiled all the same, sorted the caller's list in place, and left the ladder
unset below level 3, so that a run was not the run that its settings named. Here every setting is checked when it is
made, the caller's objects are left alone, and what was asked for is kept beside what takes effect.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

import torch

from atom_impl.models.model_config import ModelConfig
from atom_impl.utils import checks
from atom_impl.utils.ladder import Ladder, automatic_ladder, check_reachable, explicit_ladder
from atom_impl.utils.stable_hash import stable_hash

OP_BACKENDS = ("torch", "triton", "aiter")
LADDER_NAME = "cudagraph_capture_sizes"  # the one string that `compile_sizes` may hold
DEFAULT_SPLITTING_OPS = ("aiter.unified_attention_with_output", "aiter.mla_attention")


class CompilationLevel:
    """How `torch.compile` is applied. Plain integers, as `CompilationConfig.level` is."""

    NO_COMPILATION = 0
    DYNAMO_AS_IS = 1
    DYNAMO_ONCE = 2
    PIECEWISE = 3


class CUDAGraphMode(Enum):
    """Which graphs a step replays. A tuple is (decode, mixed prefill-decode), in the values of the plain modes."""

    NONE = 0
    TR_HYBRID = 1
    FULL = 2
    FULL_DECODE_ONLY = (FULL, NONE)
    FULL_AND_TR_HYBRID = (FULL, TR_HYBRID)

    @classmethod
    def from_name(cls, name: str) -> CUDAGraphMode:
        """The mode that a command line or profile names; an unknown name raises `ValueError` and lists the choices."""
        checks.check_choice("cudagraph_mode", name, cls.__members__)
        return cls[name]

    def decode_mode(self) -> CUDAGraphMode:
        return CUDAGraphMode(self.value[0]) if self.separate_routine() else self

    def mixed_mode(self) -> CUDAGraphMode:
        return CUDAGraphMode(self.value[1]) if self.separate_routine() else self

    def separate_routine(self) -> bool:
        return isinstance(self.value, tuple)

    def has_full_cudagraphs(self) -> bool:
        return self.max_cudagraph_mode() is CUDAGraphMode.FULL

    def uses_tr_hybrid(self) -> bool:
        return CUDAGraphMode.TR_HYBRID in (self.decode_mode(), self.mixed_mode())

    def max_cudagraph_mode(self) -> CUDAGraphMode:
        return CUDAGraphMode(max(self.value)) if self.separate_routine() else self


@dataclass
class CompilationConfig:
    """Everything that the guide lets a user say about compilation and graphs. Wrong values raise `ValueError`.

    `Config` completes a copy of it: `splitting_ops`, `cudagraph_mode` and `compile_sizes` are final only there.
    """

    level: int = CompilationLevel.NO_COMPILATION
    use_cudagraph: bool = True
    local_cache_dir: str | None = field(default=None, init=False)
    cudagraph_capture_sizes: list[int] | None = None
    cuda_graph_sizes: list[int] = field(default_factory=list)
    debug_dump_path: str = ""
    traced_files: set[str] = field(default_factory=set, init=False)
    cache_dir: str = ""
    use_inductor: bool = True
    cudagraph_mode: CUDAGraphMode | None = None
    compilation_time: float = field(default=0.0, init=False)
    splitting_ops: list[str] | None = None
    cudagraph_copy_inputs: bool = False
    inductor_compile_config: dict[str, Any] = field(default_factory=dict)
    compile_sizes: list[int | str] | None = None
    #: Layer name to module. A module enters itself when it is built; every opaque op looks its layer up here.
    static_forward_context: dict[str, Any] = field(default_factory=dict, init=False)
    #: What was generated, piece by piece: "piece 3", "piece 3 for 64 rows" or "whole model" to its number of kernels.
    generated_kernels: dict[str, int] = field(default_factory=dict, init=False)

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> CompilationConfig:
        """A config from parsed JSON or TOML. A key that is no setting raises `ValueError` and names the nearest one."""
        known = [entry.name for entry in fields(cls) if entry.init]
        for key in settings:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(known)}"
                raise ValueError(f"compilation_config key {key!r}: no such setting; {hint}")
        return cls(**settings)

    def __post_init__(self) -> None:
        if isinstance(self.level, bool) or not isinstance(self.level, int) or not 0 <= self.level <= 3:
            raise ValueError(f"level {self.level!r}: level must be in 0-3; CompilationLevel names what each does")
        for name in ("use_cudagraph", "use_inductor", "cudagraph_copy_inputs"):
            checks.check_flag(name, getattr(self, name))
        for name in ("cache_dir", "debug_dump_path"):
            checks.check_text(name, getattr(self, name))
        self.cudagraph_mode = _checked_mode(self.cudagraph_mode)
        # Copies, in the caller's order: upstream sorted the caller's own list when it began to capture.
        if self.cudagraph_capture_sizes is not None:
            self.cudagraph_capture_sizes = checks.checked_sizes(LADDER_NAME, self.cudagraph_capture_sizes)
        self.cuda_graph_sizes = checks.checked_sizes("cuda_graph_sizes", self.cuda_graph_sizes or [512])
        if self.splitting_ops is not None:
            self.splitting_ops = checks.checked_names("splitting_ops", self.splitting_ops)
        if self.compile_sizes is not None:
            self.compile_sizes = checks.checked_compile_sizes("compile_sizes", self.compile_sizes, LADDER_NAME)
        self.inductor_compile_config = checks.checked_options("inductor_compile_config", self.inductor_compile_config)

    def set_splitting_ops_for_v1(self) -> None:
        """Step 1 of level 3: the default split ops, unless the user listed others; an empty list splits nowhere."""
        if self.level != CompilationLevel.PIECEWISE:
            raise ValueError(
                f"level {self.level}: set_splitting_ops_for_v1 should only be called when level is "
                "CompilationLevel.PIECEWISE, the only one that splits; set level=3 first"
            )
        if self.splitting_ops is None:
            self.splitting_ops = list(DEFAULT_SPLITTING_OPS)

    def init_with_cudagraph_sizes(self, capture_sizes: list[int] | None = None) -> None:
        """Step 4 of level 3: make `compile_sizes` a list of integers, in the order given and each once.

        "cudagraph_capture_sizes" becomes `capture_sizes`, the final ladder, or without one the explicit list.
        """
        ladder = self.cudagraph_capture_sizes if capture_sizes is None else capture_sizes
        final: dict[int | str, None] = {}
        for size in self.compile_sizes or ():
            if size == LADDER_NAME and ladder is None:
                raise ValueError(
                    f"compile_sizes entry {size!r}: no ladder is known yet; pass capture_sizes or use Config"
                )
            final.update(dict.fromkeys(ladder or ()) if size == LADDER_NAME else {size: None})
        self.compile_sizes = list(final)

    def compute_hash(self) -> str:
        """Identity of what a compile produces, as 64 hex digits: every field that changes it and no other.

        Graph mode, ladder and input copies are left out, for a recording adds nothing to the code that it records, and
        so are paths, timings and run-time tables. `compile_sizes` says which artefacts a complete cache holds.
        """
        return stable_hash(
            {
                "level": self.level,
                "use_inductor": self.use_inductor,
                "splitting_ops": set(self.splitting_ops or ()),
                "inductor_compile_config": self.inductor_compile_config,
                "compile_sizes": set(self.compile_sizes or ()),
            }
        )


@dataclass
class Config:
    """One engine's settings, completed and consistent. Wrong or contradictory values raise `ValueError`.

    `compilation_config` becomes a private copy that holds what takes effect; `requested_level` and `requested_mode` are
    what would, without `enforce_eager` and `use_cudagraph=False`. `capture_sizes` is final at every level.
    """

    model: str = ""
    hf_config: ModelConfig | None = None
    dtype: torch.dtype = torch.bfloat16
    device: str = field(default_factory=lambda: "cuda" if torch.cuda.is_available() else "cpu")
    max_num_seqs: int = 512
    max_num_batched_tokens: int = 16384
    max_model_len: int | None = None
    kv_cache_block_size: int = 16
    num_kvcache_blocks: int | None = None
    enforce_eager: bool = False
    capture_sizes: list[int] | None = None
    prefill_capture_sizes: list[int] | None = None
    eager_above_ladder: bool = False
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)
    pad_poison_row: bool = False
    op_backend: str = "torch"
    requested_level: int = field(default=CompilationLevel.NO_COMPILATION, init=False)
    requested_mode: CUDAGraphMode = field(default=CUDAGraphMode.NONE, init=False)
    capture_sizes_added: list[int] = field(default_factory=list, init=False)
    capture_sizes_dropped: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._check_values()
        self._bind_model_len()
        compilation = self.compilation_config = _own_compilation_config(self.compilation_config)
        self.requested_level = compilation.level
        self.requested_mode = self._default_mode()
        if self.enforce_eager:
            compilation.level = CompilationLevel.NO_COMPILATION
        if compilation.level == CompilationLevel.PIECEWISE:
            compilation.set_splitting_ops_for_v1()
        self._set_cudagraph_sizes()
        graphs_off = self.enforce_eager or not compilation.use_cudagraph
        compilation.cudagraph_mode = CUDAGraphMode.NONE if graphs_off else self.requested_mode
        compilation.init_with_cudagraph_sizes(self.capture_sizes)
        compile_sizes = [size for size in compilation.compile_sizes or () if isinstance(size, int)]
        check_reachable("compile_sizes", compile_sizes, self._row_limits())

    def compute_hash(self) -> str:
        """Identity of compiled code: model shape, dtype, kind of device, limits that become shapes, compile options."""
        return stable_hash(
            {
                "compilation": self.compilation_config.compute_hash(),
                "model": None if self.hf_config is None else self.hf_config.identity(),
                "dtype": self.dtype,
                "device": torch.device(self.device).type,
                "max_num_batched_tokens": self.max_num_batched_tokens,
                "max_model_len": self.max_model_len,
                "pad_poison_row": self.pad_poison_row,
                "op_backend": self.op_backend,
            }
        )

    def _check_values(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "kv_cache_block_size"):
            checks.check_positive_int(name, getattr(self, name), "set a limit of at least 1")
        for name in ("max_model_len", "num_kvcache_blocks"):
            if getattr(self, name) is not None:
                checks.check_positive_int(name, getattr(self, name), "leave it out for the default")
        for name in ("enforce_eager", "eager_above_ladder", "pad_poison_row"):
            checks.check_flag(name, getattr(self, name))
        checks.check_text("model", self.model)
        checks.check_dtype("dtype", self.dtype)
        checks.check_device("device", self.device)
        checks.check_choice("op_backend", self.op_backend, OP_BACKENDS)
        checks.check_type("hf_config", self.hf_config, (ModelConfig, type(None)))

    def _bind_model_len(self) -> None:
        if self.hf_config is None:
            return
        positions = self.hf_config.max_position_embeddings
        self.max_model_len = self.max_model_len or positions
        if self.max_model_len > positions:
            raise ValueError(
                f"max_model_len {self.max_model_len}: the model has {positions} positions; ask for no more"
            )

    def _default_mode(self) -> CUDAGraphMode:
        """The mode asked for. The guide gives a default to level 3 alone: below it, nobody asked for graphs."""
        compilation = self.compilation_config
        if compilation.cudagraph_mode is not None:
            return compilation.cudagraph_mode
        return CUDAGraphMode.TR_HYBRID if compilation.level == CompilationLevel.PIECEWISE else CUDAGraphMode.NONE

    def _row_limits(self) -> dict[str, int]:
        return {"max_num_batched_tokens": self.max_num_batched_tokens}

    def _set_cudagraph_sizes(self) -> None:
        """Step 2 of level 3, taken at every level because graph modes do not depend on the level."""
        ladder = self._ladder()
        self.capture_sizes = list(ladder.sizes)
        self.capture_sizes_added = list(ladder.added)
        self.capture_sizes_dropped = list(ladder.dropped)
        # Without token buckets the list is empty rather than None, so that nobody has to ask which of the two it is.
        if self.prefill_capture_sizes:
            sizes = checks.checked_sizes("prefill_capture_sizes", self.prefill_capture_sizes)
            self.prefill_capture_sizes = list(explicit_ladder("prefill_capture_sizes", sizes, self._row_limits()).sizes)
        else:
            self.prefill_capture_sizes = []

    def _ladder(self) -> Ladder:
        """Explicit sizes win, then several `cuda_graph_sizes`, then the documented pattern up to the single one."""
        limits = {"max_num_seqs": self.max_num_seqs, **self._row_limits()}
        explicit, limit = self.compilation_config.cudagraph_capture_sizes, self.compilation_config.cuda_graph_sizes
        if self.capture_sizes is not None:
            own = checks.checked_sizes("capture_sizes", self.capture_sizes)
            if explicit is not None and sorted(explicit) != sorted(own):
                raise ValueError(f"capture_sizes={own}: contradicts {LADDER_NAME}={explicit}; give only one of the two")
            return explicit_ladder("capture_sizes", own, limits)
        if explicit is not None:
            return explicit_ladder(LADDER_NAME, explicit, limits)
        if len(limit) > 1:
            return explicit_ladder("cuda_graph_sizes", limit, limits)
        return automatic_ladder(limit[0], min(limits.values()))


def _own_compilation_config(given: object) -> CompilationConfig:
    """A copy: engines made from one object would share a layer table, and one's enforce_eager would reach the other."""
    if isinstance(given, Mapping):
        return CompilationConfig.from_mapping(given)
    if isinstance(given, CompilationConfig):
        return replace(given)
    raise ValueError(f"compilation_config {given!r}: must be a CompilationConfig or a dict of its settings")


def _checked_mode(value: object) -> CUDAGraphMode | None:
    if isinstance(value, str):
        return CUDAGraphMode.from_name(value)
    if value is None or isinstance(value, CUDAGraphMode):
        return value
    raise ValueError(f"cudagraph_mode {value!r}: must be a CUDAGraphMode or the name of one, such as 'FULL'")


_current: Config | None = None


def set_current_atom_config(config: Config | None) -> None:
    """Make `config` the one that modules read while they are built; None forgets it."""
    global _current
    _current = config


def get_current_atom_config() -> Config:
    if _current is None:
        raise RuntimeError("Current atom config is not set; build the model within use_custom_atom_config(config)")
    return _current


@contextmanager
def use_custom_atom_config(config: Config) -> Iterator[Config]:
    """`config` is current within the block; what was current before is back afterwards, also when the block raises."""
    previous = _current
    set_current_atom_config(config)
    try:
        yield config
    finally:
        set_current_atom_config(previous)
