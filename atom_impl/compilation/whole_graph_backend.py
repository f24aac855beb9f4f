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
from atom_impl.compilation.generated_code import generated_code
from atom_impl.compilation.graph_identity import operators_digest
from atom_impl.compilation.torch_compat import own_cache_keys
from atom_impl.config import Config
from atom_impl.utils.compilation_counter import compilation_counter

Compiled = Callable[..., Any]


class InductorOnceBackend:
    """Level 2: one Inductor compile for every size. With `use_inductor=False` the graph runs as it was traced."""

    def __init__(self, config: Config) -> None:
        self._config = config.compilation_config

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        check_may_compile("the whole model")
        compilation_counter.num_graphs_seen += 1
        compilation_counter.num_backend_compilations += 1
        if not self._config.use_inductor:
            compilation_counter.num_eager_compiles += 1
            return graph.forward
        from torch._inductor.compile_fx import compile_fx

        options = dict(self._config.inductor_compile_config)
        with own_cache_keys(operators_digest(graph)), generated_code() as code:
            compiled: Any = compile_fx(graph, list(example_inputs), config_patches=options)
        compilation_counter.num_inductor_compiles += 1
        if code.kernels is not None:
            self._config.generated_kernels["whole model"] = code.kernels
        return compiled


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
