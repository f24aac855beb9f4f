"""What the host does in every step, piece by piece, in microseconds.

A decode step of a small model on a fast GPU is bound by the host: 200 us of Python in front of a replay of 400 us was
found only by reading traces. Each piece has its own row here, so that the one that grew has a name.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from atom_impl.compilation.cache_identity import code_hash
from atom_impl.compilation.copy_inputs import StaticInputs
from atom_impl.compilation.guard_free import GuardFreeDispatch
from atom_impl.config import CompilationConfig, CompilationLevel, Config, CUDAGraphMode
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.staging import StagingBuffers
from atom_impl.utils.forward_context import (
    Context,
    get_forward_context,
    reset_forward_context,
    set_forward_context,
    token_graph_action,
)
from atom_impl.utils.forward_mode import Captured, ForwardMode
from atom_impl.utils.step_ledger import CopyKind, Fallback, StepLedger, StepRecord
from suites.contract.small_model import small_model

LADDERS = {3: (1, 2, 4), 35: (1, 2, 4, *range(8, 257, 8))}


def cost(group: str) -> pytest.MarkDecorator:
    """One group in the table and in `--benchmark-compare`; short, for the suite runs whenever the tests do."""
    return pytest.mark.benchmark(group=group, max_time=0.2, min_rounds=20)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def config(device: str) -> Config:
    """Level 3 with every kind of setting filled in, so that the hash has what a real one has."""
    compilation = CompilationConfig(
        level=CompilationLevel.PIECEWISE, cudagraph_mode=CUDAGraphMode.FULL, cudagraph_capture_sizes=[1, 2, 4]
    )
    return Config(model="tiny", hf_config=small_model(), device=device, max_num_seqs=64, compilation_config=compilation)


def decode_mode(live: int, running: int) -> ForwardMode:
    return ForwardMode(False, live, live, running, running, 1, "FULL", use_cudagraph=True)


@cost("context")
def test_setting_and_resetting_the_forward_context(config: Config, host_cost: Any) -> None:
    context, mode, record = Context(torch.zeros(4), batch_size=3, running_bs=4), decode_mode(3, 4), StepRecord()

    def set_and_reset() -> None:
        set_forward_context({}, config, context, record=record, mode=mode)
        reset_forward_context()

    host_cost(set_and_reset)
    assert get_forward_context().context is None


@cost("context")
def test_asking_the_context_what_a_token_graph_does(config: Config, host_cost: Any) -> None:
    set_forward_context({}, config, Context(torch.zeros(4)), tr_graph="replay")
    try:
        assert host_cost(token_graph_action) == ("replay", "decode")
    finally:
        reset_forward_context()


@cost("bucket choice")
@pytest.mark.parametrize("sizes", LADDERS)
@pytest.mark.parametrize("mode", ["FULL", "TR_HYBRID"])
def test_choosing_the_bucket_of_a_decode_step(mode: str, sizes: int, host_cost: Any) -> None:
    ladder = LADDERS[sizes]
    captured = Captured(requests=ladder, decode_tokens=ladder, done=True)
    chosen = host_cost(lambda: decide(CUDAGraphMode[mode], captured, requests=ladder[-2] + 1))
    assert (chosen.effective, chosen.running_bs) == (mode, ladder[-1])


@cost("bucket choice")
def test_finding_that_a_step_is_above_the_ladder(host_cost: Any) -> None:
    captured = Captured(requests=LADDERS[35], done=True)
    chosen = host_cost(lambda: decide(CUDAGraphMode.FULL, captured, requests=257))
    assert chosen.fallback is Fallback.ABOVE_LADDER


def decide(mode: CUDAGraphMode, captured: Captured, requests: int) -> ForwardMode:
    return ForwardMode.decide(
        mode=mode,
        is_prefill=False,
        scheduled_bs=requests,
        scheduled_tokens=requests,
        max_seqlen_q=1,
        captured=captured,
    )


@pytest.fixture(scope="module")
def staging(device: str) -> StagingBuffers:
    return StagingBuffers(
        max_rows=256,
        max_requests=64,
        max_model_len=2048,
        block_size=16,
        hidden_size=64,
        dtype=torch.float32,
        device=torch.device(device),
    )


@cost("staging")
@pytest.mark.parametrize("requests", [1, 4, 64])
def test_staging_a_decode_step(requests: int, staging: StagingBuffers, host_cost: Any) -> None:
    blocks = [list(range(index, index + 64)) for index in range(requests)]
    batch = ScheduledBatch(False, [[7]] * requests, [1000] * requests, blocks)
    mode = decode_mode(requests, requests)
    ids, positions, metadata = host_cost(lambda: staging.stage(batch, mode, StepRecord()), synchronise=True)
    assert ids.tolist() == [7] * requests
    assert positions.tolist() == [999] * requests
    assert metadata.live_rows.item() == requests


@cost("staging")
def test_staging_a_prefill_of_two_hundred_tokens(staging: StagingBuffers, host_cost: Any) -> None:
    batch = ScheduledBatch(True, [list(range(200))], [200], [list(range(13))])
    mode = ForwardMode(True, 1, 200, 1, 256, 200, "TR_HYBRID", token_graph=True)
    ids, _, _ = host_cost(lambda: staging.stage(batch, mode, StepRecord()), synchronise=True)
    assert ids.tolist() == [*range(200), *[0] * 56]


@cost("ledger")
def test_recording_a_step_with_eight_copies(host_cost: Any) -> None:
    ledger = StepLedger()

    def keep() -> None:
        record = StepRecord(requested_mode="FULL", effective_mode="FULL", bucket=4, live_rows=3, padded_rows=1)
        for _ in range(7):
            record.copied(CopyKind.STAGING, 32)
        record.copied(CopyKind.OUTPUT, 512)
        ledger.close(record)

    host_cost(keep)
    assert ledger.last is not None
    assert ledger.last.copies[CopyKind.STAGING].bytes == 7 * 32


class Doubled(nn.Module):
    """As little device work as a forward can have, so that dispatch is what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ids.view(-1), positions.view(-1)


class AsTraced:
    """A backend that generates no code: the graph runs as Dynamo traced it."""

    def __call__(self, module: nn.Module) -> Callable[..., Callable[..., Any]]:
        return lambda graph, example_inputs: graph.forward

    def inspect_code(self, code: types.CodeType, module: nn.Module) -> None:
        return None


@cost("dispatch")
@pytest.mark.parametrize("dispatch", ["plain", "guard-free"])
def test_reaching_the_compiled_forward(dispatch: str, host_cost: Any) -> None:
    model, ids, positions = Doubled(), torch.arange(4), torch.arange(4)
    call: Callable[..., Any] = model.forward
    if dispatch == "guard-free":
        dims = {"ids": [0], "positions": [0]}
        guard_free = GuardFreeDispatch(Doubled.forward, AsTraced(), dims)  # type: ignore[arg-type]

        def call(*args: torch.Tensor) -> Any:
            return guard_free(model, *args)

        call(ids, positions)
        assert guard_free.is_traced
    found, _ = host_cost(call, ids, positions)
    assert found.tolist() == [0, 1, 2, 3]


@cost("cache key")
def test_hashing_the_configuration(config: Config, host_cost: Any) -> None:
    assert len(host_cost(config.compute_hash)) == 64


@cost("cache key")
def test_hashing_the_traced_sources(host_cost: Any) -> None:
    files = [str(module.__file__) for module in (nn.functional, nn.modules.linear, nn.modules.normalization)]
    assert host_cost(code_hash, files) == code_hash(reversed(files))


@cost("copy plan")
@pytest.mark.parametrize("rows", [1, 64])
def test_copying_the_inputs_of_a_call_to_fixed_addresses(rows: int, device: str, host_cost: Any) -> None:
    static = StaticInputs(lambda *inputs: inputs, {0: [0], 1: [0]}, max_rows=64)
    given = [torch.arange(rows, device=device), torch.ones(rows, 64, device=device)]
    ids, hidden = host_cost(static, *given, synchronise=True)
    assert ids.data_ptr() == static.input_buffers[0].data_ptr()
    assert torch.equal(hidden, given[1])


@cost("copy plan")
def test_stating_what_a_step_copies(staging: StagingBuffers, host_cost: Any) -> None:
    assert {entry["per"] for entry in host_cost(staging.layout)} == {"row", "request", "request+1", "step"}
