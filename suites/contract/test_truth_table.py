"""Guards against a page of levels and modes that says what somebody once meant and the code no longer does.

The page in `docs/` is made by serving steps; here it is made again and compared. If the change is meant, run
`python -m tools.truth_table` and read the diff.
"""

from __future__ import annotations

import pytest

from atom_impl.config import CUDAGraphMode
from atom_impl.model_engine.model_runner import ModelRunner
from atom_impl.utils.forward_mode import ForwardMode
from atom_impl.utils.step_ledger import Fallback, StepRecord
from tools import truth_table
from tools.truth_table import MODES, NOT_SET, PAGE, Served, page, serve

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_committed_page_is_what_the_code_does() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.truth_table and read the diff"


def test_every_graph_mode_of_the_code_has_its_rows() -> None:
    assert set(MODES) == {NOT_SET, *(mode.name for mode in CUDAGraphMode)}
    text = PAGE.read_text(encoding="utf-8")
    assert all(text.count(f"| `{mode}` |") == 2 for mode in CUDAGraphMode.__members__)


def test_a_step_that_runs_eagerly_shows_on_the_page_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_is = serve(0, "FULL", {})["decode"]
    assert (as_it_is.form(), as_it_is.record.fallback) == ("FULL: 1 segment", None)
    decide = ForwardMode.decide

    def downgraded(**asked: object) -> ForwardMode:
        return decide(**(asked | {"allow_graphs": Fallback.GRAPHS_OFF}))  # type: ignore[arg-type]

    monkeypatch.setattr(ModelRunner, "decide", lambda self, **asked: downgraded(**_arguments(self, asked)))
    found = serve(0, "FULL", {})["decode"]
    assert (found.form(), found.record.fallback) == ("eager", Fallback.GRAPHS_OFF)


def _arguments(runner: ModelRunner, asked: dict[str, object]) -> dict[str, object]:
    return {
        "mode": runner.config.requested_mode,
        "is_prefill": asked["is_prefill"],
        "scheduled_bs": asked["requests"],
        "scheduled_tokens": asked["rows"],
        "max_seqlen_q": asked.get("max_seqlen_q", 1),
        "captured": runner._captured,
    }


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ((2, 1), (3, 2), "TR_HYBRID: L + 1 segments, L regions"),
        ((1, 0), (1, 0), "TR_HYBRID: 1 segment"),
        ((3, 2), (5, 4), "TR_HYBRID: 2 L + 1 segments, 2 L regions"),
    ],
)
def test_counts_are_written_as_expressions_of_the_layers(one: tuple[int, int], two: tuple[int, int], said: str) -> None:
    records = {
        layers: StepRecord(effective_mode="TR_HYBRID", segments=segments, regions=regions)
        for layers, (segments, regions) in zip(truth_table.LAYERS, (one, two), strict=True)
    }
    assert Served(records, StepRecord()).form() == said
