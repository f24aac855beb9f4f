"""Levels 1 and 2: the whole forward as one graph.

Upstream's level 2 went through the piecewise backend, which split the graph and then failed on a setting that only
level 3 fills in.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from atom_impl.compilation.compile_gate import check_may_compile
from atom_impl.compilation.compiler_manager import CompilerManager
from atom_impl.compilation.piece_graphs import fake_inputs, symbol_ranges
from atom_impl.config import Config
from atom_impl.utils.compilation_counter import compilation_counter

Compiled = Callable[..., Any]


class InductorOnceBackend:
    """Level 2: one Inductor compile for every size, found again by the next process. With `use_inductor=False` the
    graph runs as it was traced.
    """

    def __init__(self, config: Config, prefix: str) -> None:
        """Artefacts are kept under `prefix`."""
        self._config = config
        self._prefix = prefix
        self._manager = CompilerManager(config.compilation_config)

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        check_may_compile("the whole model")
        compilation_counter.num_graphs_seen += 1
        self._manager.open_for(self._config, self._prefix)
        fakes = fake_inputs(graph, example_inputs)
        self._manager.symbol_ranges = symbol_ranges()
        options = self._config.compilation_config.inductor_compile_config
        return self._manager.compile(graph, fakes, options)


def compile_as_is(model: Callable[..., Any]) -> Compiled:
    """Level 1, applied by the runner: a module or a forward behind Dynamo alone, its guards kept, sizes of at least 2
    in one graph.

    A graph break raises Dynamo's `Unsupported` or `UserError` on the first call and names the line. Every trace after
    the first counts as a recompile.
    """
    traces = itertools.count()

    def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        check_may_compile("the model")
        compilation_counter.dynamo_as_is_count += 1
        compilation_counter.num_eager_compiles += 1
        compilation_counter.recompiles += next(traces) > 0
        return graph.forward

    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError):
            compilation_counter.graph_breaks += 1
            raise

    return call
