"""Guards against the cell that nobody ran: a level that is right and a graph mode that is right, wrong together.

Profile `matrix` on a four-layer model, whole but for the number of input sets: every level under every graph mode, at
every bucket's edges and the first size past the ladder, through the gates of a sign-off. Level 1 under mode NONE once
compiled in the middle of serving, and only this matrix saw it. `make matrix` runs it on the trained model.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from harness.filters import Filters
from harness.profile import MODES
from harness.records import Fate
from harness.signoff import Order, Run, plan_of

MODEL = "random:tiny-llama?layers=4"
INPUT_SETS = 2  # per bucket; a sign-off drives eight
#: A prefill is eager in these modes, which is the cell NONE.
EAGER_PREFILL = ("FULL", "FULL_DECODE_ONLY")


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_graph_mode_passes_every_gate_at_every_bucket_edge(level: int, device: str, tmp_path: Path) -> None:
    filters = Filters(model=[MODEL], level=[level], dtype="float32")
    order = Order("matrix", filters, device, tmp_path, fresh=True)
    plan = plan_of(order)
    numerics = msgspec.structs.replace(plan.profile.numerics, input_sets=INPUT_SETS)
    timing = msgspec.structs.replace(plan.profile.timing, warmup_steps=0, samples=1)
    plan = replace(plan, profile=msgspec.structs.replace(plan.profile, numerics=numerics, timing=timing))
    run = Run(order, plan, "signoff", say=lambda text: None)
    run.execute(Console(file=io.StringIO()))
    verdict = run.conclude().verdict
    assert verdict is not None
    assert verdict.exit_code == 0, "\n".join(verdict.reasons)
    fates = [cell.fate for cell in verdict.cells]
    assert fates.count(Fate.MEASURED) == 2 * len(MODES) - len(EAGER_PREFILL)
    assert fates.count(Fate.UNSUPPORTED) == len(EAGER_PREFILL)


def test_the_matrix_holds_every_level_under_every_mode_once(device: str) -> None:
    plan = plan_of(Order("matrix", Filters(), device))
    cells = {(cell["level"], cell["mode"], cell["workload"]) for cell in plan.cells}
    assert cells == {(level, mode, work) for level in range(4) for mode in MODES for work in ("decode", "prefill")}
    assert len(cells) == len(plan.cells)
    declared = {(c["mode"], c["workload"]) for c in plan.cells if c.id in plan.declared}
    assert declared == {(mode, "prefill") for mode in EAGER_PREFILL}
