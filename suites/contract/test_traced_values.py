"""Each start ran the split graph once more on fake inputs, only to learn what Dynamo had noted while it traced.

What was noted may be used only where it is what a run would give: not after a tensor was given other sizes in place,
not for views of one memory, which a compiler must see as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor

from atom_impl.compilation.traced_values import RESHAPE_IN_PLACE
from atom_impl.utils import backends
from atom_impl.utils.backends import VllmBackend
from suites.contract.toy_pieces import SPLIT_OP, ToyBody, toy_batch, toy_config

Values = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ATOM_CACHE_ROOT", str(tmp_path / "cache"))
    with torch.inference_mode():
        yield


class Watched:
    """What each piece was compiled with, and how many parts were run to learn it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, note_nothing: bool = False) -> None:
        self.compiled_with: Values = []
        self.runs = 0
        interpreter = backends.PiecewiseCompileInterpreter
        compile_part, call_module = interpreter._compile, interpreter.call_module

        def compiling(this: Any, target: str, args: tuple[Any, ...]) -> None:
            self.compiled_with.append(args)
            compile_part(this, target, args)

        def calling(this: Any, *args: Any) -> Any:
            self.runs += 1
            return call_module(this, *args)

        monkeypatch.setattr(interpreter, "_compile", compiling)
        monkeypatch.setattr(interpreter, "call_module", calling)
        if note_nothing:
            monkeypatch.setattr(interpreter, "_noted_arguments", lambda this, args, mode: None)


def start(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[Any, VllmBackend]:
    backend = VllmBackend(toy_config(splitting_ops=[SPLIT_OP, "aten::cumsum"]))
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=True)(*inputs), backend


def form(values: Values) -> list[list[Any]]:
    """Everything of a value that the compiler sees, sizes by their expressions."""
    return [
        [
            (str(one.shape), str(one.stride()), one.dtype, one.device, one.requires_grad)
            if isinstance(one, FakeTensor)
            else str(one)
            for one in args
        ]
        for args in values
    ]


def test_pieces_are_compiled_with_what_a_run_on_fake_inputs_would_give_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(11)
    body = ToyBody(toy_config(), 4)
    with monkeypatch.context() as patch:
        noted = Watched(patch)
        first, _ = start(body, toy_batch(3))
    with monkeypatch.context() as patch:
        ran = Watched(patch, note_nothing=True)
        second, _ = start(body, toy_batch(3))
    assert (noted.runs, ran.runs) == (0, 9)
    assert form(noted.compiled_with) == form(ran.compiled_with)
    assert torch.equal(first, second)


def reshaped(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = torch.ops.aten.cumsum(y, 0)
    y.unsqueeze_(0)
    return y * z


def aliased(x: torch.Tensor) -> torch.Tensor:
    whole = x * 2
    first = whole[:2]
    total = torch.ops.aten.cumsum(x, 0)
    first.add_(total[:2])
    return whole + first.sum() + total


def offset(x: torch.Tensor) -> torch.Tensor:
    later = (x * 2)[1:]
    return later * torch.ops.aten.cumsum(x, 0)[1:]


@pytest.mark.parametrize("function", [reshaped, aliased, offset])
def test_where_the_notes_are_not_what_a_run_gives_the_graph_is_run(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    x = torch.arange(12.0).reshape(3, 4)
    found, backend = start(function, [x.clone()])
    assert torch.equal(found, function(x.clone()))
    assert watched.runs == len(backend.piecewise_graphs) > 1


def test_every_operation_that_reshapes_in_place_is_known_by_name() -> None:
    tagged = {
        name
        for name in dir(torch.ops.aten)
        for overload in getattr(getattr(torch.ops.aten, name), "overloads", list)()
        if torch.Tag.inplace_view in getattr(getattr(torch.ops.aten, name), overload).tags
    }
    assert tagged
    assert tagged <= RESHAPE_IN_PLACE
