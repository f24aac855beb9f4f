"""Level 3: split the traced graph, compile each piece, stitch them together again.

Upstream's backend split at marked functions only, compiled thirty identical layers thirty times, and kept one cache
directory for whichever model came first. The steps below are the guide's; what they lacked is in the files that they
call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx.passes.split_module import split_module

from atom_impl.compilation.artefact_store import write_atomically
from atom_impl.compilation.compile_gate import check_may_compile
from atom_impl.compilation.compiler_manager import CompilerManager, make_compiler
from atom_impl.compilation.copy_inputs import StaticInputs
from atom_impl.compilation.piece_graphs import fake_inputs, is_fixed, return_tuple, symbol_ranges
from atom_impl.compilation.split_ops import splitting_nodes
from atom_impl.compilation.traced_values import TracedValues, reshapes_in_place
from atom_impl.config import Config, CUDAGraphMode
from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.cuda_piecewise_backend import PiecewiseBackend

__all__ = [
    "CompilerManager",
    "PiecewiseCompileInterpreter",
    "SplitItem",
    "VllmBackend",
    "make_compiler",
    "set_model_tag",
    "split_graph",
]

logger = logging.getLogger(__name__)

model_tag = "backbone"


@contextmanager
def set_model_tag(tag: str) -> Iterator[None]:
    """Backends made within the block keep their artefacts under `tag`, so that a drafter does not use the target's."""
    global model_tag
    if tag == model_tag:
        raise ValueError(f"model tag {tag!r} is already set; nested compiles need a name of their own")
    previous, model_tag = model_tag, tag
    try:
        yield
    finally:
        model_tag = previous


@dataclass
class SplitItem:
    """One submodule of a split graph, in order of execution.

    `graph_id` is the number in `submod_name`; ids may have gaps.
    """

    submod_name: str
    graph_id: int
    is_splitting_graph: bool
    graph: torch.fx.GraphModule


def split_graph(graph: torch.fx.GraphModule, ops: Iterable[str]) -> tuple[torch.fx.GraphModule, list[SplitItem]]:
    """Divide `graph` before and after every split operation. Returns the stitching module and its parts, in order.

    Every split operation is alone in its part. The order of the original is kept, since parts may change tensors in
    place.
    """
    splits = splitting_nodes(graph.graph, ops)
    part = 0
    part_of: dict[torch.fx.Node, int] = {}
    for node in graph.graph.nodes:
        if node.op in ("output", "placeholder"):
            continue
        if node in splits:
            part += 1
            part_of[node] = part
            part += 1
        else:
            part_of[node] = part
    split_gm = split_module(graph, graph, lambda node: part_of[node], keep_original_order=True)
    splitting_ids = {part_of[node] for node in splits}
    items = []
    for name, submodule in split_gm.named_children():
        if name.startswith("submod_") and isinstance(submodule, torch.fx.GraphModule):
            graph_id = int(name.removeprefix("submod_"))
            items.append(SplitItem(name, graph_id, graph_id in splitting_ids, submodule))
    return split_gm, sorted(items, key=lambda item: item.graph_id)


class PiecewiseCompileInterpreter(torch.fx.Interpreter):
    """Walks a split graph with fake inputs, and puts a compiled `PiecewiseBackend` in the place of every named
    submodule. What Dynamo has noted of the values between the parts is used; otherwise the graph is run.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        compile_submod_names: Sequence[str],
        config: Config,
        manager: CompilerManager,
    ) -> None:
        super().__init__(module)
        self.compile_submod_names = list(compile_submod_names)
        self.compilation_config = config.compilation_config
        self.manager = manager

    def run(self, *args: Any, **options: Any) -> Any:
        """Compile every named part. `args` are fake tensors and symbolic integers, as Dynamo traced them.

        Returns what the graph returns, or None if Dynamo had noted all that the parts take and nothing had to run.
        """
        mode = torch._guards.detect_fake_mode(list(args))
        if mode is None:
            raise RuntimeError("the interpreter needs fake inputs, or to be run within a torch.compile backend")
        with mode, enable_python_dispatcher():
            noted = self._noted_arguments(args, mode)
            if noted is None:
                return super().run(*args, **options)
            for target, values in noted.items():
                self._compile(target, values)
        return None

    def _noted_arguments(self, args: Sequence[Any], mode: FakeTensorMode) -> dict[str, tuple[Any, ...]] | None:
        """What each named part is called with, as Dynamo noted it; None if a single one cannot be told."""
        assert isinstance(self.module, torch.fx.GraphModule)
        calls = [node for node in self.module.graph.nodes if node.op == "call_module"]
        if reshapes_in_place(self.fetch_attr(node.target) for node in calls):
            return None
        values = TracedValues(self.module, args, mode)
        noted = {}
        for node in calls:
            if node.target in self.compile_submod_names:
                found = values.of(self.fetch_attr(node.target), node)
                if found is None:
                    return None
                noted[node.target] = found
        return noted

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = super().call_module(target, args, kwargs)
        if target in self.compile_submod_names:
            self._compile(target, args)
        return output

    def _compile(self, target: str, args: tuple[Any, ...]) -> None:
        index = self.compile_submod_names.index(target)
        piece = self.fetch_attr(target)
        returned_tuple = return_tuple(piece)
        config = self.compilation_config
        general = self.manager.compile(
            piece,
            args,
            config.inductor_compile_config,
            graph_index=index,
            num_graphs=len(self.compile_submod_names),
            runtime_shape=None,
        )
        compilation_counter.num_piecewise_capturable_graphs_seen += 1
        # In __dict__, where the generated forward finds it first; the registered submodule stays for whoever prints
        # the model.
        self.module.__dict__[target] = PiecewiseBackend(
            piece,
            [size for size in config.compile_sizes or () if isinstance(size, int)],
            config.inductor_compile_config,
            piecewise_compile_index=index,
            total_piecewise_compiles=len(self.compile_submod_names),
            sym_shape_indices=[i for i, value in enumerate(args) if isinstance(value, torch.SymInt)],
            compiled_graph_for_general_shape=general,
            manager=self.manager,
            returns_tuple=returned_tuple,
        )


class VllmBackend:
    """A `torch.compile` backend for one graph of one model. Called with the graph, it returns the stitched callable."""

    def __init__(self, config: Config, prefix: str = "") -> None:
        self.config = config
        self.compilation_config = config.compilation_config
        self.prefix = prefix or model_tag
        self.compiler_manager = CompilerManager(self.compilation_config)
        self.split_gm: torch.fx.GraphModule | None = None
        self.piecewise_graphs: list[SplitItem] = []

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if self.split_gm is not None:
            raise RuntimeError(
                "VllmBackend can only be called once: the model was traced as several graphs, or a second time; "
                "a graph break shows with TORCH_LOGS=graph_breaks"
            )
        check_may_compile(f"model {self.prefix!r}")
        compilation_counter.num_graphs_seen += 1
        cache_dir = self.compiler_manager.open_for(self.config, self.prefix)
        fakes = fake_inputs(graph, example_inputs)
        self.compiler_manager.symbol_ranges = symbol_ranges()
        self.split_gm, self.piecewise_graphs = split_graph(graph, self.compilation_config.splitting_ops or [])
        compilation_counter.num_piecewise_graphs_seen += len(self.piecewise_graphs)
        names = [item.submod_name for item in self.piecewise_graphs if not item.is_splitting_graph]
        PiecewiseCompileInterpreter(self.split_gm, names, self.config, self.compiler_manager).run(*fakes)
        self._bypass_module_calls()
        self._dump(cache_dir)
        return self._with_static_inputs(fakes)

    def _bypass_module_calls(self) -> None:
        """Split operations are called through their forward: `nn.Module.__call__` costs more than the rest of such a
        part.
        """
        assert self.split_gm is not None
        for item in self.piecewise_graphs:
            if item.is_splitting_graph:
                self.split_gm.__dict__[item.submod_name] = item.graph.forward

    def _dump(self, directory: Path) -> None:
        """Step 4: the stitched graph as text, for people."""
        assert self.split_gm is not None
        path = directory / "computation_graph.py"
        if not path.exists():
            text = self.split_gm.print_readable(print_output=False).replace("<lambda>", "GraphModule")
            write_atomically(path, f"from __future__ import annotations\nimport torch\n{text}")

    def _with_static_inputs(self, fakes: Sequence[Any]) -> Callable[..., Any]:
        assert self.split_gm is not None
        stitched: Callable[..., Any] = self.split_gm.forward
        config = self.compilation_config
        if not config.cudagraph_copy_inputs or config.cudagraph_mode in (None, CUDAGraphMode.NONE):
            return stitched
        dynamic = {
            index: [dim for dim, size in enumerate(fake.shape) if not is_fixed(size)]
            for index, fake in enumerate(fakes)
            if isinstance(fake, torch.Tensor)
        }
        return StaticInputs(stitched, dynamic, self.config.max_num_batched_tokens)
