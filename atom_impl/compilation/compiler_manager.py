"""Compile or load: every piece of every size passes through here, and everything is counted.

Upstream's table named an artefact by position alone, so that a changed model loaded another piece's code, and one
missing file ended the start-up. Here a handle carries the piece's fingerprint, and whatever cannot be loaded is
compiled again and counted with its reason.
"""

from __future__ import annotations

import ast
import logging
import pprint
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.fx

from atom_impl.compilation.artefact_store import ArtefactMiss, locked, private_dir, write_atomically
from atom_impl.compilation.cache_identity import local_cache_dir
from atom_impl.compilation.compile_gate import check_may_compile
from atom_impl.compilation.compilers import (
    Compiled,
    CompilerInterface,
    EagerAdaptor,
    Handle,
    InductorStandaloneAdaptor,
)
from atom_impl.compilation.generated_code import generated_code
from atom_impl.compilation.graph_identity import piece_fingerprint
from atom_impl.compilation.size_assumptions import by_compiler
from atom_impl.compilation.torch_compat import has_standalone_compile, size_guards
from atom_impl.config import CompilationConfig, CompilationLevel, Config
from atom_impl.utils.compilation_counter import compilation_counter

logger = logging.getLogger(__name__)

#: The documented name of the table of handles.
CACHE_FILE = "vllm_compile_cache.py"

#: (runtime shape or None, graph index, compiler name), as documented.
CacheKey = tuple[int | None, int, str]


def make_compiler(compilation_config: CompilationConfig) -> CompilerInterface:
    """The compiler that the configuration asks for and this torch has."""
    if not compilation_config.use_inductor:
        return EagerAdaptor()
    if has_standalone_compile():
        return InductorStandaloneAdaptor()
    from atom_impl.compilation.inductor_adaptor import InductorAdaptor

    return InductorAdaptor()


@dataclass(frozen=True)
class _Request:
    """One piece for one shape (None: every shape), and the name that its artefact has wherever it is found."""

    graph: torch.fx.GraphModule
    example_inputs: Sequence[Any]
    inductor_config: dict[str, Any]
    graph_index: int
    runtime_shape: int | None
    name: str
    whole: bool  # level 2 has no pieces

    @property
    def title(self) -> str:
        shape = "" if self.runtime_shape is None else f" for {self.runtime_shape} rows"
        return f"{'whole model' if self.whole else f'piece {self.graph_index}'}{shape}"


class CompilerManager:
    """The life of compiled pieces: identical ones share code, known ones are loaded, the rest is compiled and kept."""

    def __init__(self, compilation_config: CompilationConfig) -> None:
        self.compilation_config = compilation_config
        self.compiler = make_compiler(compilation_config)
        self.cache: dict[CacheKey, Handle] = {}
        self.disable_cache = True
        self._dir: Path | None = None
        #: Ranges of the traced sizes before anything was compiled; see `piece_fingerprint`.
        self.symbol_ranges: dict[Any, Any] = {}
        self._obtained: dict[str, tuple[Compiled, Handle | None]] = {}
        self._loaded_names: set[str] = set()
        #: Indices of the pieces whose code another process compiled.
        self.loaded: set[int] = set()

    def compute_hash(self, vllm_config: Any) -> str:
        return self.compiler.compute_hash(vllm_config)

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        """Use `cache_dir` from now on and read its table.

        A table that cannot be parsed counts as empty, with a reason.
        """
        self.disable_cache = disable_cache
        self._dir = None if disable_cache else private_dir(cache_dir)
        self.compiler.initialize_cache(str(cache_dir), disable_cache, prefix)
        self.cache = {} if self._dir is None else _read_table(self._dir / CACHE_FILE)

    def open_for(self, config: Config, prefix: str) -> Path:
        """Use the directory for this configuration, the sources traced for it and this compiler. Returns it."""
        compilation = config.compilation_config
        directory = local_cache_dir(config, compilation.traced_files, self.compute_hash(config), prefix)
        compilation.traced_files.clear()
        compilation.local_cache_dir = str(private_dir(directory))
        self.initialize_cache(str(directory), prefix=prefix)
        return directory

    def save_to_file(self) -> None:
        """Write the table, merged with what other processes have added since it was read."""
        if self._dir is None:
            return
        with locked(self._dir, "table"):
            self.cache = {**_read_table(self._dir / CACHE_FILE), **self.cache}
            write_atomically(self._dir / CACHE_FILE, pprint.PrettyPrinter(indent=4).pformat(self.cache) + "\n")

    def load(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int,
        runtime_shape: int | None = None,
        inductor_config: dict[str, Any] | None = None,
    ) -> Compiled | None:
        """The cached code for this piece and shape, or None. Every reason for None is counted in `cache_misses`."""
        config = self.compilation_config.inductor_compile_config if inductor_config is None else inductor_config
        found = self._load(self._request(graph, example_inputs, config, graph_index, runtime_shape))
        return None if found is None else found[0]

    def compile(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        inductor_config: dict[str, Any],
        graph_index: int = 0,
        num_graphs: int = 1,
        runtime_shape: int | None = None,
    ) -> Compiled:
        """Code for `graph`, which returns a flat tuple: shared with an identical piece, loaded, or compiled now.

        Raises RuntimeError when the compiler has nothing to show, or when this thread may not compile.
        """
        check_may_compile(f"piece {graph_index} of {num_graphs}")
        compilation_counter.num_backend_compilations += 1
        started = time.perf_counter()
        request = self._request(graph, example_inputs, inductor_config, graph_index, runtime_shape)
        compiled, handle = self._obtain(request)
        if request.name in self._loaded_names:
            self.loaded.add(graph_index)
        self._remember(request, handle)
        self.compilation_config.compilation_time += time.perf_counter() - started
        if graph_index == num_graphs - 1:
            logger.info("compiled %d pieces in %.1f s", num_graphs, self.compilation_config.compilation_time)
        return compiled

    def _request(
        self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any], config: dict[str, Any], index: int, shape: Any
    ) -> _Request:
        options = {"inductor": config, "compiler": self.compiler.name, "shape": shape}
        fingerprint = piece_fingerprint(graph, example_inputs, options, self.symbol_ranges)
        name = f"artifact_shape_{shape}_graph_{fingerprint[:32]}"
        whole = self.compilation_config.level == CompilationLevel.DYNAMO_ONCE
        return _Request(graph, example_inputs, dict(config), index, shape, name, whole)

    def _obtain(self, request: _Request) -> tuple[Compiled, Handle | None]:
        shared = self._obtained.get(request.name)
        if shared is not None:
            compilation_counter.num_piece_reuses += 1
            return shared
        with generated_code() as code:
            result = self._load_or_compile(request)
        if code.kernels is not None:
            self.compilation_config.generated_kernels[request.title] = code.kernels
        self._obtained[request.name] = result
        return result

    def _load_or_compile(self, request: _Request) -> tuple[Compiled, Handle | None]:
        if self._dir is None:
            return self._compile(request)
        # Another process that starts on the same piece waits here, and then loads what this one made and listed.
        with locked(self._dir, request.name):
            result = self._load(request) or self._compile(request)
            self._remember(request, result[1])
        return result

    def _load(self, request: _Request) -> tuple[Compiled, Handle] | None:
        if self._dir is None:
            return None
        handle = self._find(request)
        try:
            if handle is None:
                raise ArtefactMiss("absent", f"no artefact for piece {request.graph_index}")
            shape = request.runtime_shape
            compiled = self.compiler.load(handle, request.graph, request.example_inputs, request.graph_index, shape)
        except ArtefactMiss as miss:
            compilation_counter.cache_misses[miss.reason] += 1
            logger.log(logging.DEBUG if miss.reason == "absent" else logging.WARNING, "cache miss, %s", miss)
            return None
        compilation_counter.num_cache_hits += 1
        self._loaded_names.add(request.name)
        return compiled, handle

    def _find(self, request: _Request) -> Handle | None:
        """The handle of this very code, wherever it stands in the table; other processes may just have added it."""
        assert self._dir is not None
        for table in (self.cache, _read_table(self._dir / CACHE_FILE)):
            for handle in table.values():
                if handle[0] == request.name:
                    return handle
        return self.compiler.find(request.name)

    def _compile(self, request: _Request) -> tuple[Compiled, Handle | None]:
        guards = size_guards()
        compiled, handle = self.compiler.compile(
            request.graph, request.example_inputs, request.inductor_config, request.runtime_shape, request.name
        )
        assumed = [str(expr) for expr, _ in by_compiler(guards)]
        if assumed and request.runtime_shape is None:
            # The dispatcher checks these on every call, but a later process that only loads the code would not know.
            logger.warning("piece %d was compiled for %s only and is not cached", request.graph_index, assumed)
            compilation_counter.cache_misses["specialised"] += 1
            handle = None
        if compiled is None:
            raise RuntimeError(
                f"Failed to compile the graph: {self.compiler.name} returned nothing for piece {request.graph_index}, "
                f"shape {request.runtime_shape}"
            )
        return compiled, None if self._dir is None else handle

    def _remember(self, request: _Request, handle: Handle | None) -> None:
        key = (request.runtime_shape, request.graph_index, self.compiler.name)
        if handle is None or self.cache.get(key) == handle:
            return
        self.cache[key] = handle
        compilation_counter.num_cache_entries_updated += 1
        self.save_to_file()


def _read_table(path: Path) -> dict[CacheKey, Handle]:
    """The table of handles, parsed and never executed.

    Anything else than such a table is an empty one, counted as corrupt.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        return _unusable_table(path, error)
    try:
        table = ast.literal_eval(text)
        if not all(_is_entry(key, handle) for key, handle in table.items()):
            raise ValueError("not a table of handles")
    except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError) as error:
        return _unusable_table(path, error)
    return dict(table)


def _unusable_table(path: Path, error: Exception) -> dict[CacheKey, Handle]:
    compilation_counter.cache_misses["corrupt"] += 1
    logger.warning("cache miss, corrupt: %s: %s", path, error)
    return {}


def _is_entry(key: object, handle: object) -> bool:
    shape, index, name = key if isinstance(key, tuple) and len(key) == 3 else ("", "", "")
    named = isinstance(name, str) and isinstance(index, int) and (shape is None or isinstance(shape, int))
    return named and isinstance(handle, tuple) and bool(handle) and all(isinstance(part, str) for part in handle)
