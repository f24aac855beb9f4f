"""The compilers behind the compile levels, behind one small interface.

Upstream's interface let a missing artefact end the start-up and let another build's artefact in. An adaptor here
answers a load that cannot be used with `ArtefactMiss`, and its caller compiles instead and counts why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx

from atom_impl.compilation.artefact_store import ArtefactMiss, publish, verify
from atom_impl.compilation.cpu_features import probe_cpu_features
from atom_impl.compilation.graph_identity import operators_digest
from atom_impl.compilation.native_kernels import NativeKernels, keeping_kernel_modules
from atom_impl.compilation.toolchain import toolchain
from atom_impl.compilation.torch_compat import own_cache_keys
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.stable_hash import stable_hash

logger = logging.getLogger(__name__)

Compiled = Callable[..., Any]
#: What finds an artefact again. The first entry is the key it was compiled under; all are literals.
Handle = tuple[str, ...]


class CompilerInterface:
    """What a compiler offers. Graphs take and return flat tuples of tensors and symbolic integers."""

    #: Part of every cache key.
    name: str = ""

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        """Where artefacts go from now on. `cache_dir` exists; with `disable_cache` nothing is read or kept."""

    def compute_hash(self, vllm_config: Any) -> str:
        """State of this compiler that makes old artefacts invalid."""
        return ""

    def compile(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: int | None = None,
        key: str | None = None,
    ) -> tuple[Compiled | None, Handle | None]:
        """Compile `graph` for every size, or for `runtime_shape` alone.

        No callable: failed. No handle: not cacheable.
        """
        return None, None

    def load(
        self,
        handle: Handle,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int,
        runtime_shape: int | None = None,
    ) -> Compiled:
        """The callable behind `handle`. Raises `ArtefactMiss` when the artefact is missing, damaged or foreign."""
        raise NotImplementedError("caching is not supported")

    def find(self, key: str) -> Handle | None:
        """The handle of an artefact compiled under `key` that no table lists, where the compiler can tell."""
        return None


def set_inductor_config(config: dict[str, Any], runtime_shape: int | None) -> dict[str, Any]:
    """A copy of `config`; one concrete shape is worth tuning for, every shape at once is not. The user's values win."""
    if isinstance(runtime_shape, int):
        return {"max_autotune": True, "coordinate_descent_tuning": True, **config}
    return dict(config)


class EagerAdaptor(CompilerInterface):
    """`use_inductor=False`: pieces run as they were traced. Tells a fault of Inductor from one of splitting."""

    name = "eager"

    def compile(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: int | None = None,
        key: str | None = None,
    ) -> tuple[Compiled | None, Handle | None]:
        compilation_counter.num_eager_compiles += 1
        return graph.forward, None


class InductorCompiler(CompilerInterface):
    """What Inductor's two adaptors share: whose artefacts they are, and what becomes of one that cannot be kept."""

    def __init__(self) -> None:
        self._dir: Path | None = None

    def compute_hash(self, vllm_config: Any) -> str:
        return stable_hash(toolchain())[:16]

    def _saved(self, handle: Handle) -> Handle:
        compilation_counter.num_compiled_artifacts_saved += 1
        return handle

    def _unsaveable(self, key: str, why: str) -> Handle | None:
        """No handle. Counted each time, but a warning once per process, since one cause usually hits every piece."""
        global _warned
        logger.log(logging.DEBUG if _warned else logging.WARNING, "artefact %s is not cached: %s", key, why)
        _warned = True
        compilation_counter.cache_misses["unsaveable"] += 1
        return None


class InductorStandaloneAdaptor(InductorCompiler):
    """Inductor through `torch._inductor.standalone_compile`, torch 2.8 and later. No torch internals are replaced."""

    name = "inductor_standalone"

    def __init__(self) -> None:
        super().__init__()
        self._owner = ""

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        self._dir = None if disable_cache else Path(cache_dir)
        self._owner = self.compute_hash(None)

    def compile(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: int | None = None,
        key: str | None = None,
    ) -> tuple[Compiled | None, Handle | None]:
        from torch._inductor import standalone_compile

        shapes: Any = "from_example_inputs" if isinstance(runtime_shape, int) else "from_tracing_context"
        patches = set_inductor_config(compiler_config, runtime_shape)
        with own_cache_keys(operators_digest(graph)):
            artefact = standalone_compile(
                graph, list(example_inputs), dynamic_shapes=shapes, options={"config_patches": patches}
            )
        compilation_counter.num_inductor_compiles += 1
        if self._dir is None or key is None:
            return artefact, None
        handle = self._save(artefact, key)
        if handle is None:
            return artefact, None
        # What runs is what was saved. A GPU's kernels are tuned when they first run and keep the result beside their
        # own file: code that ran from memory and was loaded later was tuned twice, and its bits differed between
        # starts.
        try:
            return self.load(handle, graph, example_inputs, 0, runtime_shape), handle
        except ArtefactMiss as miss:
            return artefact, self._unsaveable(key, str(miss))

    def load(
        self,
        handle: Handle,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int,
        runtime_shape: int | None = None,
    ) -> Compiled:
        if self._dir is None:
            raise ArtefactMiss("disabled", "the cache is off")
        path = self._dir / handle[1]
        verify(path, self._owner)
        if next(path.rglob("*.main.cpp"), None) is not None:
            probe_cpu_features()
        try:
            with keeping_kernel_modules():
                load: Callable[..., Compiled] = torch._inductor.CompiledArtifact.load  # type: ignore[attr-defined]
                return load(path=str(path), format="unpacked")
        except Exception as error:  # torch raises bare AssertionErrors here; whatever it is, the way on is to compile
            raise ArtefactMiss("unloadable", f"{path}: {type(error).__name__}: {error}") from error

    def find(self, key: str) -> Handle | None:
        """Artefacts are named by their key.

        A table keyed by position forgets one when a deeper model takes its place.
        """
        return (key, key) if self._dir is not None and (self._dir / key).is_dir() else None

    def _save(self, artefact: Any, key: str) -> Handle | None:
        assert self._dir is not None
        kernels = NativeKernels()

        def write(content: Path) -> None:
            with keeping_kernel_modules():
                artefact.save(path=str(content), format="unpacked")
            kernels.copy_into(content)

        if not _is_saveable(artefact):
            return self._unsaveable(key, "Inductor recorded no artefact")
        try:
            publish(self._dir, key, self._owner, write)
        except (AssertionError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and _TORCH_REFUSES not in str(error):
                raise
            return self._unsaveable(key, f"{type(error).__name__}: {error}")
        return self._saved((key, key))


#: How torch words that an artefact holds something that it cannot write.
_TORCH_REFUSES = "CompiledArtifact.save failed to save"
_warned = False


def _is_saveable(artefact: Any) -> bool:
    check = getattr(artefact, "is_saveable", None)
    return True if check is None else bool(check())
