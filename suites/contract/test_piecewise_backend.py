"""One piece at run time: the general code first, then a declared size's own, compiled once and never in a recording.

Upstream indexed an empty list when no symbolic size reached a piece, and a piece met a compile inside a capture.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from atom_impl.compilation.compile_gate import refusing_compiles
from atom_impl.utils.cuda_piecewise_backend import ConcreteSizeEntry, PiecewiseBackend
from suites.contract.toy_pieces import op_graph


class RecordingManager:
    """Compiles by name: the code for a size returns that size."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.shapes: list[Any] = []
        self.delay_s = delay_s

    def compile(self, graph: Any, args: Any, config: Any, **where: Any) -> Any:
        time.sleep(self.delay_s)
        self.shapes.append(where["runtime_shape"])
        return lambda *_: (where["runtime_shape"],)


def piece(sizes: list[int], manager: Any, symbols: tuple[int, ...] = (0,), tuples: bool = False) -> Any:
    return PiecewiseBackend(
        op_graph([torch.relu]),
        sizes,
        {},
        0,
        1,
        symbols,
        lambda *_: ("general",),
        manager,
        returns_tuple=tuples,
    )


def test_the_first_call_runs_the_general_code_whatever_its_size() -> None:
    manager = RecordingManager()
    run = piece([4], manager)
    assert run(4, None) == "general"
    assert manager.shapes == []


def test_a_declared_size_is_compiled_once_when_first_met() -> None:
    manager = RecordingManager()
    run = piece([4, 8], manager)
    assert [run(rows) for rows in (1, 4, 4, 3, 8, 4, 8)] == ["general", 4, 4, "general", 8, 4, 8]
    assert manager.shapes == [4, 8]
    assert all(entry.compiled for entry in run.concrete_size_entries.values())


def test_entries_start_uncompiled() -> None:
    assert piece([4], RecordingManager()).concrete_size_entries == {4: ConcreteSizeEntry(4, False, None)}


def test_a_piece_that_no_symbolic_size_reaches_runs_its_general_code() -> None:
    manager = RecordingManager()
    run = piece([4], manager, symbols=())
    assert [run("x"), run("x")] == ["general", "general"]
    assert manager.shapes == []


def test_a_piece_that_returned_a_tuple_still_does() -> None:
    assert piece([], RecordingManager(), tuples=True)(1) == ("general",)


def test_a_size_first_met_in_a_recording_is_refused_and_compiles_afterwards() -> None:
    manager = RecordingManager()
    run = piece([4], manager)
    run(4)
    with (
        refusing_compiles("bucket 4 is being recorded"),
        pytest.raises(RuntimeError, match=r"piece 0 for size 4 .*bucket 4 is being recorded"),
    ):
        run(4)
    assert manager.shapes == []
    assert run(4) == 4
    with refusing_compiles("bucket 4 is being recorded"):
        assert run(4) == 4


def test_a_compile_that_failed_is_tried_again() -> None:
    class Flaky(RecordingManager):
        def compile(self, *args: Any, **where: Any) -> Any:
            if not self.shapes:
                self.shapes.append("failed")
                raise RuntimeError("out of memory")
            return super().compile(*args, **where)

    run = piece([4], Flaky())
    run(4)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(4)
    assert run(4) == 4


def test_threads_compile_a_size_once() -> None:
    manager = RecordingManager(delay_s=0.05)
    run = piece([4], manager)
    run(4)
    threads = [threading.Thread(target=run, args=(4,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manager.shapes == [4]
