"""A first compile inside a capture once gave an empty recording and no error."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from atom_impl.compilation.compile_gate import check_may_compile, refusal, refusing_compiles
from suites.contract.toy_pieces import toy, toy_batch, toy_config


def test_nothing_is_refused_outside_a_block() -> None:
    check_may_compile("anything")
    assert refusal() is None


def test_a_refused_compile_names_what_why_and_where() -> None:
    with (
        refusing_compiles("bucket 4 is being recorded"),
        pytest.raises(RuntimeError, match=r"piece 2 .*bucket 4 is being recorded") as caught,
    ):
        check_may_compile("piece 2")
    assert "test_a_refused_compile_names_what_why_and_where" in str(caught.value)


def test_a_block_that_raised_refuses_nothing_any_more() -> None:
    with pytest.raises(KeyError), refusing_compiles("recording"):
        raise KeyError
    assert refusal() is None


def test_a_function_is_asked_each_time() -> None:
    answers = [None, "now"]
    with refusing_compiles(lambda: answers.pop(0)):
        check_may_compile("first")
        with pytest.raises(RuntimeError, match="now"):
            check_may_compile("second")


def test_nested_blocks_end_in_order() -> None:
    with refusing_compiles("outer"):
        with refusing_compiles("inner"):
            assert refusal() == "inner"
        assert refusal() == "outer"


def test_other_threads_may_compile() -> None:
    seen: list[str | None] = []
    with refusing_compiles("recording on this thread"):
        thread = threading.Thread(target=lambda: seen.append(refusal()))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.parametrize("level", [2, 3])
def test_a_models_first_call_in_a_recording_is_refused_and_a_later_one_is_not(
    level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_CACHE_ROOT", str(tmp_path))
    model = toy(toy_config(level), layers=1)
    batch = toy_batch(2)
    with torch.inference_mode():
        with refusing_compiles("bucket 2 is being recorded"), pytest.raises(RuntimeError, match=r"forward of Toy"):
            model(*batch)
        expected = model(*batch)
        with refusing_compiles("bucket 2 is being recorded"):
            assert torch.equal(model(*batch), expected)
