"""One compiled piece at run time: the code for every size, and code for the sizes worth their own.

Upstream's piece read `args[sym_shape_indices[0]]` of an empty list when no symbolic size reached it, and the cache
was never saved when one declared size did not occur. Here such a piece runs its general code, and every compile is
saved at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from atom_impl.compilation.compile_gate import check_may_compile

if TYPE_CHECKING:
    from atom_impl.compilation.compiler_manager import CompilerManager


@dataclass
class ConcreteSizeEntry:
    """One declared size of a piece; `runnable` is its own code once `compiled`."""

    runtime_shape: int
    compiled: bool = False
    runnable: Callable[..., Any] | None = None


class PiecewiseBackend:
    """A piece of a split graph, installed in place of its submodule.

    The first call always runs the general code: it belongs to the model's warm-up, before any size is recorded. From
    then on a size in `compile_sizes` is compiled once, when first met; within a recording that raises RuntimeError.
    `graph` and every compiled form of it return a flat sequence; `returns_tuple` says whether the piece itself
    returned a single value.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        compile_sizes: Sequence[int],
        inductor_config: dict[str, Any],
        piecewise_compile_index: int,
        total_piecewise_compiles: int,
        sym_shape_indices: Sequence[int],
        compiled_graph_for_general_shape: Callable[..., Any],
        manager: CompilerManager,
        returns_tuple: bool = True,
    ) -> None:
        self.graph = graph
        self.inductor_config = inductor_config
        self.piecewise_compile_index = piecewise_compile_index
        self.total_piecewise_compiles = total_piecewise_compiles
        self.sym_shape_indices = list(sym_shape_indices)
        self.compiled_graph_for_general_shape = compiled_graph_for_general_shape
        self.concrete_size_entries = {size: ConcreteSizeEntry(size) for size in compile_sizes}
        self.returns_tuple = returns_tuple
        self.first_run_finished = False
        self._manager = manager
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        runnable = self._runnable(args)
        try:
            outputs = runnable(*args)
        except Exception as error:
            error.add_note(f"({self._description()})")
            raise
        return outputs if self.returns_tuple else outputs[0]

    def _description(self) -> str:
        """Where the code comes from: loaded code that does not fit says that the cache took it for another's."""
        index = self.piecewise_compile_index
        origin = "loaded from the compile cache" if index in self._manager.loaded else "compiled in this process"
        return f"in piece {index} of {self.total_piecewise_compiles}, whose code was {origin}"

    def _runnable(self, args: Sequence[Any]) -> Callable[..., Any]:
        if not self.first_run_finished:
            self.first_run_finished = True
            return self.compiled_graph_for_general_shape
        if not self.concrete_size_entries or not self.sym_shape_indices:
            return self.compiled_graph_for_general_shape
        entry = self.concrete_size_entries.get(args[self.sym_shape_indices[0]])
        if entry is None:
            return self.compiled_graph_for_general_shape
        if not entry.compiled:
            self._compile(entry, args)
        assert entry.runnable is not None
        return entry.runnable

    def _compile(self, entry: ConcreteSizeEntry, args: Sequence[Any]) -> None:
        """Compile one size. The lock is held for the compile alone, never while a piece runs."""
        index = self.piecewise_compile_index
        with self._lock:
            if entry.compiled:
                return
            check_may_compile(f"piece {index} for size {entry.runtime_shape}")
            entry.runnable = self._manager.compile(
                self.graph,
                args,
                self.inductor_config,
                graph_index=index,
                num_graphs=self.total_piecewise_compiles,
                runtime_shape=entry.runtime_shape,
            )
            entry.compiled = True
