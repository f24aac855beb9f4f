"""A host that fills a pinned buffer while the copy of the step before is still to come gives the GPU two steps in one.

On a CPU the call is the copy, so a missing gate passes every test. With copies that are made late, as a GPU makes them,
it does not; and one fence per slot, which is enough, stays silent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from atom_impl.config import CompilationConfig, Config, CUDAGraphMode
from atom_impl.device.software import CopyEvent, DelayedCopies, host
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_engine.staging import StagingBuffers
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.utils.forward_mode import ForwardMode
from atom_impl.utils.region_graph import reset_graph_pool
from atom_impl.utils.step_ledger import StepRecord

pytestmark = pytest.mark.usefixtures("inference")

ROWS = 4
TICKS = pytest.mark.parametrize("ticks", [1, 5, 100])


def batch(step: int) -> ScheduledBatch:
    lengths = [step + row + 1 for row in range(ROWS)]
    return ScheduledBatch(
        False, [[10 * step + row] for row in range(ROWS)], lengths, [[step, row] for row in range(ROWS)]
    )


def make_staging(device: torch.device) -> StagingBuffers:
    return StagingBuffers(
        max_rows=ROWS,
        max_requests=ROWS,
        max_model_len=32,
        block_size=16,
        hidden_size=8,
        dtype=torch.float32,
        device=device,
    )


def look(seen: list[list[list[int]]], inputs: tuple[torch.Tensor, ...]) -> None:
    seen.append([tensor.tolist() for tensor in inputs])


def serve(ticks: int, steps: int = 4) -> tuple[list[list[list[int]]], DelayedCopies]:
    """Stage `steps` steps as fast as the host can; what the device of each of them sees, in its own time."""
    copies = DelayedCopies(ticks)
    staging = make_staging(torch.device("cpu"))
    staging.delay_copies(copies)
    mode = ForwardMode(False, ROWS, ROWS, ROWS, ROWS, 1, "NONE")
    seen: list[list[list[int]]] = []
    for step in range(steps):
        ids, positions, metadata = staging.stage(batch(step), mode, StepRecord())
        inputs = (ids, positions, metadata.context_lens, metadata.block_tables[:, 0])
        copies.launch(partial(look, seen, inputs))
    copies.synchronize()
    return seen, copies


def expected(steps: int = 4) -> list[list[list[int]]]:
    batches = [batch(step) for step in range(steps)]
    return [
        [
            [tokens[0] for tokens in each.token_ids],
            [length - 1 for length in each.context_lens],
            list(each.context_lens),
            [table[0] for table in each.block_tables],
        ]
        for each in batches
    ]


@TICKS
def test_a_host_that_runs_ahead_waits_for_the_copies_of_the_step_before(ticks: int) -> None:
    seen, copies = serve(ticks)
    assert seen == expected()
    assert copies.torn == []


def test_without_the_gate_a_step_is_computed_on_the_next_ones_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyEvent, "synchronize", lambda self: None)
    seen, copies = serve(ticks=5)
    assert seen != expected()
    assert seen[-1] == expected()[-1]  # nothing follows the last step
    assert any(line.startswith("input_ids: the host rewrote it") for line in copies.torn)


def runner(model: str) -> ModelRunner:
    source = resolve_model(model)
    compilation = CompilationConfig(level=0, cudagraph_mode=CUDAGraphMode.FULL, cudagraph_capture_sizes=[2])
    config = Config(
        model=model,
        hf_config=source.config,
        compilation_config=compilation,
        dtype=torch.float32,
        device="cpu",
        max_num_seqs=2,
        max_model_len=32,
        max_num_batched_tokens=32,
        num_kvcache_blocks=8,
    )
    return ModelRunner(config, load_model(config, source.weights(config.dtype, torch.device("cpu"))))


def leave_alone(served: ModelRunner) -> None:
    pass


def skip_the_gate_in_dummy_steps(served: ModelRunner) -> None:
    """An idle rank's step is staged on a path of its own."""
    staging, original = served.staging, served.run_dummy

    def run_dummy(*args: object, **kwargs: object) -> None:
        gate, staging._uploaded = staging._uploaded, None
        try:
            original(*args, **kwargs)  # type: ignore[arg-type]
        finally:
            staging._uploaded = gate

    served.run_dummy = run_dummy  # type: ignore[method-assign]


@pytest.mark.parametrize(("change", "is_fault"), [(leave_alone, False), (skip_the_gate_in_dummy_steps, True)])
def test_a_gate_that_one_path_of_the_runner_lacks_is_found(
    change: Callable[[ModelRunner], None], is_fault: bool, model_name: str
) -> None:
    served, copies = runner(model_name), DelayedCopies(ticks=40, at_once=True)
    served.staging.delay_copies(copies)
    change(served)
    served.capture_cudagraph()
    for step in range(4):
        served.step(ScheduledBatch(False, [[5], [6]], [step + 1, step + 3], [[0, 1], [2, 3]]))
        served.run_dummy(2, is_prefill=False, tr_graph=None)
    copies.synchronize()
    served.close()
    reset_graph_pool()
    assert bool(copies.torn) is is_fault, copies.torn


@pytest.mark.parametrize("slots", [1, 2])
def test_one_fence_per_slot_is_enough_and_none_is_not(slots: int) -> None:
    copies, device, seen = DelayedCopies(ticks=5), torch.zeros(3), []
    pinned = [host(torch.zeros(3)) for _ in range(slots)]
    fences = [copies.event() for _ in pinned]
    for step in range(6):
        slot = step % slots
        if slots > 1:
            fences[slot].synchronize()
        pinned[slot].fill_(step)
        copies.copy(device, pinned[slot])
        fences[slot].record()
        copies.launch(lambda: seen.append(device[0].item()))
    copies.synchronize()
    assert (seen == list(range(6))) is (slots > 1)
    assert bool(copies.torn) is (slots == 1)
    assert copies.in_flight == 0


def test_work_is_done_in_order_and_when_its_time_has_come() -> None:
    copies, device, source = DelayedCopies(ticks=3), torch.zeros(2), host(torch.ones(2))
    done = copies.event()
    copies.copy(device, source)
    done.record()
    assert not device.any()
    assert not done.query()
    copies.tick()
    assert copies.in_flight == 1
    copies.tick()
    assert device.all()
    assert done.query()
    with pytest.raises(ValueError, match="ticks is 1 or more"):
        DelayedCopies(0)


def test_only_the_copies_of_a_cpu_are_modelled() -> None:
    staging = make_staging(torch.device("meta"))
    with pytest.raises(ValueError, match="are late by themselves"):
        staging.delay_copies(DelayedCopies())
