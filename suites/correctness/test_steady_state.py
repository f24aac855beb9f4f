"""A decode step that recompiled was right, took seconds, and stood in no counter: at level 1 Dynamo traces again by
itself whenever a guard fails. After capture that is an error which names the guard; and the warm-up before it must
leave no size for which there is no code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from atom_impl.compilation.steady_state import compiling_nothing, warm_up_rows
from atom_impl.compilation.whole_graph_backend import compile_as_is
from atom_impl.config import CompilationConfig, Config, CUDAGraphMode
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.model_ops.norm import RMSNorm
from atom_impl.utils.compilation_counter import compilation_counter
from suites.contract.toy_pieces import toy, toy_batch, toy_config

Make = Callable[..., ModelRunner]
LENGTH = 20


@pytest.fixture
def make(model_name: str, device: str) -> Iterator[Make]:
    made: list[ModelRunner] = []

    def runner(level: int, **compilation: Any) -> ModelRunner:
        source = resolve_model(model_name)
        config = Config(
            model=model_name,
            hf_config=source.config,
            dtype=torch.float32,
            device=device,
            max_num_seqs=6,
            max_model_len=64,
            max_num_batched_tokens=64,
            num_kvcache_blocks=40,
            compilation_config=CompilationConfig(
                level=level,
                cudagraph_mode=CUDAGraphMode.NONE,
                cudagraph_capture_sizes=[1, 2, 4],
                use_inductor=False,
                **compilation,
            ),
        )
        made.append(ModelRunner(config, load_model(config, source.weights(config.dtype, torch.device(device)))))
        made[-1].capture_cudagraph()
        return made[-1]

    with torch.inference_mode():
        yield runner
    for each in made:
        each.close()


def batch(requests: int, *, tokens: int = 1) -> ScheduledBatch:
    length = LENGTH if tokens == 1 else tokens
    blocks = [[4 * request + block for block in range(4)] for request in range(requests)]
    return ScheduledBatch(tokens > 1, [[7] * tokens] * requests, [length] * requests, blocks)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_after_capture_no_size_of_either_phase_needs_a_compiler(make: Make, level: int) -> None:
    runner = make(level, compile_sizes=[5, 3] if level == 3 else None)
    with compilation_counter.expect(recompiles=0, num_backend_compilations=0, dynamo_as_is_count=0):
        for requests in (3, 1, 6, 2, 5, 4):
            runner.step(batch(requests))
            runner.step(batch(requests, tokens=8))
        record = runner.step(batch(1, tokens=33)).record
    assert (record.compiles, record.recompiles) == (0, 0)


def test_a_guard_that_fails_in_a_step_is_an_error_that_names_it(make: Make) -> None:
    runner = make(1)
    norm = next(module for module in runner.model.modules() if isinstance(module, RMSNorm))
    name = next(name for name, value in vars(norm).items() if isinstance(value, float))
    right = runner.step(batch(3)).logits.clone()
    setattr(norm, name, getattr(norm, name) * 2)
    with compilation_counter.expect(recompiles=0), pytest.raises(RuntimeError, match=f"(?is)recompile.*{name}"):
        runner.step(batch(3))
    setattr(norm, name, getattr(norm, name) / 2)
    assert torch.equal(runner.step(batch(3)).logits, right), "the refusal ends with the step"


def test_level_1_counts_every_trace_after_the_first() -> None:
    run = compile_as_is(toy(toy_config(1)))
    with compilation_counter.expect(dynamo_as_is_count=3, recompiles=2, graph_breaks=0):
        for rows in (4, 6, 1, 9, 4, 1):
            run(*toy_batch(rows))


@pytest.mark.parametrize("level", [2, 3])
def test_a_first_call_in_the_steady_state_is_refused_with_its_reason(level: int) -> None:
    model = toy(toy_config(level))
    with compiling_nothing(level), pytest.raises(RuntimeError, match="would have to be compiled now, but capture is"):
        model(*toy_batch(4))
    model(*toy_batch(4))
    with compiling_nothing(level):
        model(*toy_batch(9))


def test_a_declared_size_that_was_never_run_is_refused_with_its_piece() -> None:
    model = toy(toy_config(3, compile_sizes=[4]))
    model(*toy_batch(3))
    with compiling_nothing(3), pytest.raises(RuntimeError, match="piece 0 for size 4 would have to be compiled"):
        model(*toy_batch(4))


def test_level_0_needs_no_guard_against_compilers() -> None:
    with compiling_nothing(0):
        toy(toy_config(0))(*toy_batch(3))


def test_the_warm_up_runs_what_each_level_tells_apart() -> None:
    assert warm_up_rows(0, 4, 64, None) == [4]
    assert warm_up_rows(1, 4, 64, None) == [4, 2, 1]
    assert warm_up_rows(1, 1, 64, None) == [2, 3, 1]
    assert warm_up_rows(1, 1, 2, None) == [2, 1]
    assert warm_up_rows(3, 4, 64, [8, 1, 100]) == [4, 8, 1]
