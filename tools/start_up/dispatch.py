"""What it costs to reach compiled code: guard-free dispatch against plain `torch.compile`, per call, as a ratio.

A dispatch timed in front of a forward of milliseconds drowns in it. Both dispatches here lead to the same code, which
computes nothing; the model, and with it the number of guards, is the real one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch

from atom_impl.compilation.guard_free import GuardFreeDispatch, function_with_code
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.utils.region_graph import units_of
from tools.start_up.child import Start, config_of

CALLS, BLOCKS, WARM = 200, 24, 50


class _Nothing:
    """A backend whose code returns the same tensors for every call."""

    def __init__(self, output: torch.Tensor) -> None:
        self._output = output

    def __call__(self, module: torch.nn.Module) -> Callable[..., Callable[..., Any]]:
        return self.compile

    def compile(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        outputs = (self._output,)
        return lambda *args: outputs

    def inspect_code(self, code: CodeType, module: torch.nn.Module) -> None:
        return None


def measure(start: Start) -> dict[str, Any]:
    """Microseconds of one call of either kind, block by block in the order ABBA, and their ratio."""
    config = config_of(start)
    weights = resolve_model(start.model).weights(config.dtype, torch.device(config.device))
    unit = units_of(load_model(config, weights))[0]
    forward: Any = type(unit).forward
    ids, positions = (torch.zeros(4, dtype=torch.int64, device=config.device) for _ in range(2))
    nothing = _Nothing(torch.zeros(4, config.hf_config.hidden_size, dtype=config.dtype, device=config.device))
    guard_free = GuardFreeDispatch(forward, nothing, {"input_ids": [0], "positions": [0]})
    own = function_with_code(forward, forward.__code__.replace(co_name="plain"))
    plain = torch.compile(own, backend=nothing.compile, fullgraph=True, dynamic=True)
    calls = {"guard_free": lambda: guard_free(unit, ids, positions), "plain": lambda: plain(unit, ids, positions)}
    blocks: dict[str, list[float]] = {name: [] for name in calls}
    with torch.inference_mode():
        for call in calls.values():
            _block_us(call, WARM)
        for number in range(BLOCKS):
            for name in list(calls) if number % 2 else list(reversed(calls)):
                blocks[name].append(_block_us(calls[name], CALLS))
    ratios = [free / guarded for free, guarded in zip(blocks["guard_free"], blocks["plain"], strict=True)]
    return {
        "guard_free_us": statistics.median(blocks["guard_free"]),
        "plain_us": statistics.median(blocks["plain"]),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": statistics.quantiles(ratios, n=4),
        "compared_attributes": guard_free.baked_values,
        "calls_a_block": CALLS,
        "blocks": BLOCKS,
    }


def _block_us(call: Callable[[], Any], calls: int) -> float:
    started = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - started) / 1e3 / calls
