"""One start in a fresh process: from the interpreter's birth to the end of the first step, with counts.

A warm start timed in the process that had compiled measured the memory of that process. Here the parent passes the time
of birth, everything is imported and built anew, and one line of JSON comes out.
"""

from __future__ import annotations

import importlib
import itertools
import json
import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Start:
    """What to start. `share` is False for the side that compiles every piece for itself."""

    model: str
    level: int
    mode: str
    device: str
    dtype: str
    ladder: list[int]
    share: bool
    born: float  # seconds since the epoch

    def text(self) -> str:
        return json.dumps(asdict(self))


def run(start: Start) -> dict[str, Any]:
    """Seconds of each part and of the whole, the compile counters, and the cache's misses by reason."""
    marks = {"born": start.born, "python": time.time()}
    import torch

    from atom_impl.model_engine.model_runner import ModelRunner
    from atom_impl.model_loader import load_model, resolve_model
    from atom_impl.utils.compilation_counter import compilation_counter

    if not start.share:
        _compile_each_piece()
    marks["import"] = time.time()
    _import_compiler(start.level)
    marks["compiler's import"] = time.time()
    config = config_of(start)
    weights = resolve_model(start.model).weights(config.dtype, torch.device(config.device))
    marks["weights"] = time.time()
    runner = ModelRunner(config, load_model(config, weights))
    marks["build"] = time.time()
    runner.capture_cudagraph()
    marks["warm-up and capture"] = time.time()
    runner.step(_first_step(runner))
    runner.device.synchronize()
    marks["first step"] = time.time()
    names = list(marks)
    seconds = {name: marks[name] - marks[before] for before, name in itertools.pairwise(names)}
    return {
        "seconds": seconds,
        "whole_s": marks["first step"] - start.born,
        "trace_s": _trace_s(start.level),
        "compiler_import_s": seconds["compiler's import"],
        "counters": {name: count for name, count in compilation_counter.as_dict().items() if count},
        "kernels": dict(config.compilation_config.generated_kernels),
    }


def _import_compiler(level: int) -> None:
    """torch's own modules that a level needs and level 0 does not; imported here so that their seconds stand apart."""
    if level:
        importlib.import_module("torch._dynamo.convert_frame")
    if level > 1:
        importlib.import_module("torch._inductor.compile_fx")


def config_of(start: Start) -> Any:
    """A server that is no larger than its first step needs: what a start costs lies elsewhere."""
    import torch

    from atom_impl.config import CompilationConfig, Config, CUDAGraphMode
    from atom_impl.model_loader import resolve_model

    return Config(
        model=start.model,
        hf_config=resolve_model(start.model).config,
        dtype=getattr(torch, start.dtype),
        device=start.device,
        max_num_seqs=max(start.ladder),
        max_model_len=128,
        max_num_batched_tokens=128,
        compilation_config=CompilationConfig(
            level=start.level,
            cudagraph_mode=CUDAGraphMode.from_name(start.mode),
            cudagraph_capture_sizes=list(start.ladder),
        ),
    )


def _first_step(runner: Any) -> Any:
    """One request's decode step in the first block."""
    from atom_impl.model_engine.batch import ScheduledBatch

    return ScheduledBatch(False, [[1]], [1], [[0] * runner.staging.table_width])


def _compile_each_piece() -> None:
    """Take the sharing of equal pieces and our cache away; the environment takes Inductor's caches."""
    from atom_impl.compilation.compiler_manager import CompilerManager

    CompilerManager._obtain = CompilerManager._compile  # type: ignore[method-assign]


def _trace_s(level: int) -> float:
    """Dynamo's own part: all that it did less the backend that it called. RuntimeError if torch does not tell."""
    if level == 0:
        return 0.0
    from torch._dynamo.utils import compilation_time_metrics

    whole = compilation_time_metrics.get("_compile.compile_inner")
    if not whole:
        raise RuntimeError(f"torch names no time of a trace; it has {', '.join(compilation_time_metrics)}")
    return sum(whole) - sum(compilation_time_metrics.get("OutputGraph.call_user_compiler", ()))


def main(text: str) -> None:
    print(json.dumps(run(Start(**json.loads(text)))), flush=True)
