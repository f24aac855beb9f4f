"""Inductor for torch before 2.8, which has no artefact to save: its own cache of graphs is made to serve as one.

Upstream replaced functions of torch for this, left some of them replaced, and on a warm start called Inductor's graph
without the wrapper that restores aliases between inputs and outputs. Here every replacement lasts for one compile,
and a load goes the way of a compile, with Inductor's part of it found in the cache.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.fx

from atom_impl.compilation.artefact_store import ArtefactMiss, private_dir
from atom_impl.compilation.compilers import Compiled, Handle, InductorCompiler, set_inductor_config
from atom_impl.compilation.cpu_features import probe_cpu_features
from atom_impl.compilation.graph_identity import operators_digest
from atom_impl.compilation.torch_compat import own_cache_keys
from atom_impl.utils.compilation_counter import compilation_counter


class AlwaysHitShapeEnv:
    """Stands in for Dynamo's shape environment where there is none: one concrete shape has no symbols to guard."""

    def __init__(self) -> None:
        self.guards: list[Any] = []

    def evaluate_guards_expression(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def get_pruned_guards(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []

    def produce_guards_expression(self, *args: Any, **kwargs: Any) -> str:
        return ""


class InductorAdaptor(InductorCompiler):
    """Inductor through `compile_fx`.

    A handle is (key, Inductor's hash of the graph, digest of the cache's entry, options), for a load repeats the
    compile.
    """

    name = "inductor"

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        self._dir = None if disable_cache else private_dir(Path(cache_dir) / "inductor_cache")

    def compile(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: int | None = None,
        key: str | None = None,
    ) -> tuple[Compiled | None, Handle | None]:
        options = set_inductor_config(compiler_config, runtime_shape)
        compiled, graph_hash, hit = self._run(graph, example_inputs, options)
        compilation_counter.num_inductor_compiles += not hit
        if self._dir is None or key is None:
            return compiled, None
        if graph_hash is None:
            raise RuntimeError(f"Inductor computed no hash for {key}: it did not reach its cache of graphs")
        digest = _digest(_entry(self._dir, graph_hash))
        if digest is None:
            return compiled, self._unsaveable(key, f"Inductor kept no entry {graph_hash} in its cache of graphs")
        if not _is_literal_text(repr(options)):
            return compiled, self._unsaveable(key, f"a load repeats the compile, and {options!r} is no plain data")
        return compiled, self._saved((key, graph_hash, digest, repr(options)))

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
        if len(handle) != 4 or not _is_literal_text(handle[3]):
            raise ArtefactMiss("corrupt", f"{handle!r} is no handle of {self.name}")
        entry = _entry(self._dir, handle[1])
        digest = _digest(entry)
        if digest is None:
            raise ArtefactMiss("missing", str(entry))
        if digest != handle[2]:
            shutil.rmtree(entry, ignore_errors=True)
            raise ArtefactMiss("corrupt", f"{entry} changed since it was written")
        compiled, graph_hash, hit = self._run(graph, example_inputs, ast.literal_eval(handle[3]))
        if graph_hash != handle[1] or not hit:
            raise ArtefactMiss("foreign", f"{entry} is not what Inductor looks for now ({graph_hash})")
        return compiled

    def _run(
        self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any]
    ) -> tuple[Compiled, str | None, bool]:
        """Compile a copy of `graph`. Returns the callable, Inductor's hash, and whether its cache had the code."""
        from torch._dynamo.utils import counters
        from torch._inductor.compile_fx import compile_fx

        patches = {**options, "fx_graph_cache": self._dir is not None, "fx_graph_remote_cache": False}
        hits = counters["inductor"]["fxgraph_cache_hit"]
        if any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in example_inputs):
            probe_cpu_features()
        with own_cache_keys(operators_digest(graph)), _own_cache(self._dir), _cacheable() as hashes:
            compiled: Any = compile_fx(copy.deepcopy(graph), list(example_inputs), config_patches=patches)
        hit = counters["inductor"]["fxgraph_cache_hit"] > hits
        return compiled, hashes[-1] if hashes else None, hit


@contextmanager
def _cacheable() -> Iterator[list[str]]:
    """Inductor caches every graph within the block; yields the hashes that it computes."""
    import torch._functorch.config
    from torch._inductor import codecache

    hashes: list[str] = []
    graph_hash = codecache.compiled_fx_graph_hash
    shape_env = codecache.FxGraphCache._get_shape_env

    def noted(*args: Any, **kwargs: Any) -> Any:
        result = graph_hash(*args, **kwargs)
        hashes.append(result[0])
        return result

    with ExitStack() as stack:
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        stack.enter_context(_replaced(codecache, "compiled_fx_graph_hash", noted))
        stack.enter_context(_replaced(codecache.FxGraphCache, "_check_can_cache", staticmethod(lambda *_, **__: None)))
        own_env = staticmethod(lambda: shape_env() or AlwaysHitShapeEnv())
        stack.enter_context(_replaced(codecache.FxGraphCache, "_get_shape_env", own_env))
        yield hashes


@contextmanager
def _own_cache(directory: Path | None) -> Iterator[None]:
    """Inductor and Triton keep their files under `directory` within the block, in this process."""
    if directory is None:
        yield
        return
    names = {"TORCHINDUCTOR_CACHE_DIR": directory, "TRITON_CACHE_DIR": directory / "triton"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(path) for name, path in names.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_ABSENT = object()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` within the block; what was there itself, not what it inherits, is put back."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _entry(directory: Path, graph_hash: str) -> Path:
    """Where Inductor keeps the entries of one graph, below its cache directory."""
    return directory / "fxgraph" / graph_hash[1:3] / graph_hash


def _digest(entry: Path) -> str | None:
    files = sorted(entry.glob("*")) if entry.is_dir() else []
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest() if files else None


def _is_literal_text(text: str) -> bool:
    try:
        return isinstance(ast.literal_eval(text), dict)
    except (ValueError, SyntaxError):
        return False
