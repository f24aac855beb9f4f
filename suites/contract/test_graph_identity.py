"""Two MLPs, one with a bias, shared an artefact; thirty equal layers shared none.

One-factor edits must give distinct fingerprints, and edits that change no code must not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from atom_impl.compilation.graph_identity import piece_fingerprint

ROWS = 4


def linear(bias: bool = False, name: str = "w", scale: float = 2.0, op: Any = torch.relu) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder(name)
    args = (x, weight, graph.placeholder("b")) if bias else (x, weight)
    graph.output(
        (graph.call_function(op, (graph.call_function(torch.mul, (graph.call_function(F.linear, args), scale)),)),)
    )
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def inputs(bias: bool = False, **changes: Any) -> list[torch.Tensor]:
    kind: dict[str, Any] = {"dtype": torch.float32, **changes}
    tensors = [torch.zeros(ROWS, 8, **kind), torch.zeros(3, 8, **kind)]
    return [*tensors, torch.zeros(3, **kind)] if bias else tensors


BASE = piece_fingerprint(linear(), inputs())

SAME: dict[str, Callable[[], str]] = {
    "the same again": lambda: piece_fingerprint(linear(), inputs()),
    "another layer's names": lambda: piece_fingerprint(linear(name="layers_17_weight"), inputs()),
    "other values in the weights": lambda: piece_fingerprint(linear(), [tensor + 1 for tensor in inputs()]),
}

OTHER: dict[str, Callable[[], str]] = {
    "a bias": lambda: piece_fingerprint(linear(bias=True), inputs(bias=True)),
    "another constant": lambda: piece_fingerprint(linear(scale=2.5), inputs()),
    "an integer for a float": lambda: piece_fingerprint(linear(scale=2), inputs()),
    "another operation": lambda: piece_fingerprint(linear(op=torch.tanh), inputs()),
    "another dtype": lambda: piece_fingerprint(linear(), inputs(dtype=torch.float64)),
    "another shape": lambda: piece_fingerprint(linear(), [torch.zeros(ROWS + 1, 8), torch.zeros(3, 8)]),
    "another layout": lambda: piece_fingerprint(linear(), [torch.zeros(8, ROWS).t(), torch.zeros(3, 8)]),
    "a parameter for a tensor": lambda: piece_fingerprint(
        linear(), [inputs()[0], torch.nn.Parameter(inputs()[1], requires_grad=False)]
    ),
    "other options": lambda: piece_fingerprint(linear(), inputs(), options=("max_autotune", True)),
}


@pytest.mark.parametrize("edit", SAME)
def test_what_changes_no_code_keeps_the_fingerprint(edit: str) -> None:
    assert SAME[edit]() == BASE


@pytest.mark.parametrize("edit", OTHER)
def test_every_single_edit_that_changes_code_changes_the_fingerprint(edit: str) -> None:
    assert OTHER[edit]() != BASE


def test_all_edits_differ_from_each_other() -> None:
    assert len({make() for make in OTHER.values()}) == len(OTHER)


def test_autocast_and_inference_mode_count() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert piece_fingerprint(linear(), inputs()) != BASE
    with torch.inference_mode():
        assert piece_fingerprint(linear(), inputs()) != BASE


def test_a_constant_counts_by_its_content() -> None:
    def holding(value: float) -> torch.fx.GraphModule:
        root = torch.nn.Module()
        root.register_buffer("table", torch.full((3,), value))
        graph = torch.fx.Graph()
        graph.output((graph.call_function(torch.add, (graph.placeholder("x"), graph.get_attr("table"))),))
        return torch.fx.GraphModule(root, graph)

    first, second = piece_fingerprint(holding(1.0), []), piece_fingerprint(holding(2.0), [])
    assert first != second
    assert piece_fingerprint(holding(1.0), []) == first


def symbolic_inputs(rows: int, *, duck: bool) -> list[Any]:
    """Two inputs whose rows are one symbol (`duck`) or two."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=duck))
    dynamic: Any = StatelessSymbolicContext([DimDynamic.DUCK if duck else DimDynamic.DYNAMIC, DimDynamic.STATIC])
    return [mode.from_tensor(torch.zeros(rows, 8), symbolic_context=dynamic) for _ in range(2)]


def test_symbols_count_by_order_and_not_by_name() -> None:
    first, second = symbolic_inputs(5, duck=False), symbolic_inputs(5, duck=False)
    assert piece_fingerprint(linear(), first) == piece_fingerprint(linear(), second)
    assert piece_fingerprint(linear(), first) == piece_fingerprint(linear(), list(reversed(first)))


def test_one_symbol_is_not_two_and_the_traced_size_counts() -> None:
    assert piece_fingerprint(linear(), symbolic_inputs(5, duck=True)) != piece_fingerprint(
        linear(), symbolic_inputs(5, duck=False)
    )
    assert piece_fingerprint(linear(), symbolic_inputs(5, duck=True)) != piece_fingerprint(
        linear(), symbolic_inputs(7, duck=True)
    )
