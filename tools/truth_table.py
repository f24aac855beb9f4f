"""The page of levels and graph modes, made by running them: a table typed by hand says what somebody once meant.

    python -m tools.truth_table [--check]

Builds a one-layer and a two-layer model for every level, serves a step in every phase under every graph mode, and
writes what the steps' own records say to `docs/levels_and_modes.md`. `--check` writes nothing and fails where the page
differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atom_impl.config import CompilationConfig, Config, CUDAGraphMode
from atom_impl.model_engine.batch import ScheduledBatch
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.model_loader import load_model, resolve_model
from atom_impl.utils.region_graph import reset_graph_pool
from atom_impl.utils.step_ledger import StepRecord

PAGE = Path(__file__).resolve().parents[1] / "docs" / "levels_and_modes.md"
LEVELS = (0, 1, 2, 3)
NOT_SET = "not set"
MODES = (NOT_SET, *CUDAGraphMode.__members__)
LAYERS = (1, 2)  # two points of the straight lines that counts of segments are
LADDER, PREFILL = [1, 2], [8]
#: Steps by phase: one that a bucket holds, and one that is beyond every bucket.
STEPS: Mapping[str, tuple[ScheduledBatch, ScheduledBatch]] = {
    "decode": (
        ScheduledBatch(False, [[5]] * 2, [3] * 2, [[0], [1]]),
        ScheduledBatch(False, [[5]] * 3, [3] * 3, [[0], [1], [2]]),
    ),
    "prefill": (
        ScheduledBatch(True, [[5] * 6], [6], [[0]]),
        ScheduledBatch(True, [[5] * 9], [9], [[0]]),
    ),
}
#: Settings beside level and mode that decide whether a step replays.
SWITCHES: Mapping[str, dict[str, Any]] = {
    "`enforce_eager=True`": {"enforce_eager": True},
    "`use_cudagraph=False`": {"use_cudagraph": False},
    "before `capture_cudagraph()`": {"capture": False},
    "`step(graphs=False)`": {"graphs": False},
}


@dataclass(frozen=True)
class Served:
    """What the records of one level, mode and phase said, by the number of layers."""

    inside: Mapping[int, StepRecord]
    beyond: StepRecord

    @property
    def record(self) -> StepRecord:
        return self.inside[LAYERS[0]]

    def form(self) -> str:
        """The effective mode with its segments and regions as expressions of the layers L."""
        if self.record.effective_mode == "NONE":
            return "eager"
        counts = [
            _line({layers: getattr(record, name) for layers, record in self.inside.items()}, name)
            for name in ("segments", "regions")
        ]
        return f"{self.record.effective_mode}: {', '.join(filter(None, counts))}"


def _line(counts: Mapping[int, int], name: str) -> str:
    first, second = LAYERS
    slope = (counts[second] - counts[first]) // (second - first)
    base = counts[first] - slope * first
    if not slope and not base:
        return ""
    if not slope:
        return f"{base} {name if base != 1 else name.removesuffix('s')}"
    times = "L" if slope == 1 else f"{slope} L"
    return f"{times} + {base} {name}" if base else f"{times} {name}"


def make_runner(level: int, mode: str, layers: int, models: dict[tuple[int, int], Any], **settings: Any) -> ModelRunner:
    """A runner of the level and mode. Models are shared between modes, as compiled code does not depend on the mode."""
    name = f"random:tiny-llama?layers={layers}"
    source = resolve_model(name)
    config = Config(
        model=name,
        hf_config=source.config,
        device="cpu",
        dtype=torch.float32,
        max_num_seqs=3,
        max_model_len=16,
        max_num_batched_tokens=16,
        num_kvcache_blocks=4,
        prefill_capture_sizes=PREFILL,
        enforce_eager=settings.get("enforce_eager", False),
        compilation_config=CompilationConfig(
            level=level,
            cudagraph_mode=None if mode == NOT_SET else CUDAGraphMode[mode],
            cudagraph_capture_sizes=LADDER,
            use_cudagraph=settings.get("use_cudagraph", True),
        ),
    )
    if (level, layers) not in models:
        weights = source.weights(config.dtype, torch.device("cpu"))
        models[level, layers] = load_model(config, weights), config
    model, built = models[level, layers]
    config.compilation_config.static_forward_context = built.compilation_config.static_forward_context
    return ModelRunner(config, model)


def serve(level: int, mode: str, models: dict[tuple[int, int], Any]) -> dict[str, Served]:
    """By phase, what steps of this level and mode say of themselves."""
    inside: dict[str, dict[int, StepRecord]] = {phase: {} for phase in STEPS}
    beyond: dict[str, StepRecord] = {}
    for layers in LAYERS:
        runner = make_runner(level, mode, layers, models)
        runner.capture_cudagraph()
        for phase, (fitting, larger) in STEPS.items():
            inside[phase][layers] = runner.step(fitting).record
            beyond[phase] = runner.step(larger).record
        runner.close()
    reset_graph_pool()
    return {phase: Served(inside[phase], beyond[phase]) for phase in STEPS}


def switched_off(models: dict[tuple[int, int], Any]) -> Iterator[tuple[str, StepRecord]]:
    """What a decode step of mode FULL says under each setting that keeps it from replaying."""
    for name, settings in SWITCHES.items():
        runner = make_runner(0, "FULL", LAYERS[0], models, **settings)
        if settings.get("capture", True):
            runner.capture_cudagraph()
        yield name, runner.step(STEPS["decode"][0], graphs=settings.get("graphs", True)).record
        runner.close()
    reset_graph_pool()


def page() -> str:
    models: dict[tuple[int, int], Any] = {}
    served = {(level, mode): serve(level, mode, models) for level in LEVELS for mode in MODES}
    head = ["mode", "phase", "asks for", *(f"level {level}" for level in LEVELS), "eager because", "beyond the buckets"]
    lines = [_row(head), _row(["---"] * len(head))]
    for mode in MODES:
        for phase in STEPS:
            lines.append(_row(_cells(mode, phase, [served[level, mode][phase] for level in LEVELS])))
    off = [_row(["setting", "asks for", "runs", "reason"]), _row(["---"] * 4)]
    for name, record in switched_off(models):
        off.append(_row([name, record.requested_mode, _mode(record.effective_mode), _reason(record)]))
    return TEXT.format(table="\n".join(lines), off="\n".join(off))


def _cells(mode: str, phase: str, levels: list[Served]) -> list[str]:
    def by_level(texts: list[str]) -> str:
        kinds = dict.fromkeys(texts)
        if len(kinds) == 1:
            return texts[0]
        return "; ".join(f"level {level}: {text}" for level, text in zip(LEVELS, texts, strict=True))

    asked = by_level([one.record.requested_mode for one in levels])
    reasons = by_level([_reason(one.record) for one in levels])
    beyond = by_level([_reason(one.beyond) for one in levels])
    shown = mode if mode == NOT_SET else f"`{mode}`"
    return [shown, phase, asked, *(one.form() for one in levels), reasons, beyond]


def _mode(name: str) -> str:
    return "eager" if name == "NONE" else name


def _reason(record: StepRecord) -> str:
    return "–" if record.fallback is None else f"`{record.fallback.value}`"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


TEXT = """# Levels and graph modes

What a step does under every compilation level and graph mode, as its own record says. Made by
`python -m tools.truth_table`, which serves these steps; do not edit. A test makes it again and compares.

A segment is one recorded graph, a region is eager work between two of them, L is the number of layers. `eager because`
is the reason that a step carries when its mode asks for a graph and a bucket would hold it; `beyond the buckets` is the
reason of a step that is larger than every bucket. Every reason is counted in the step ledger.

{table}

Levels change what runs inside a segment, never whether one is replayed. Other settings do:

{off}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.truth_table", description="The page of levels and modes.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page differs")
    check = parser.parse_args().check
    made = page()
    if not check:
        PAGE.write_text(made, encoding="utf-8")
        print(PAGE)
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made:
        return 0
    print(f"{PAGE} is not what the code does; run python -m tools.truth_table", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
