"""Random sequences of recordings, replays and what a serving process does between them, against plain runs.

Everything that a rule returns to a caller is compared at once, bit for bit, and again after every later rule until its
owner runs again: an output that another recording overwrites is right when it is returned and wrong when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import hypothesis
import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from atom_impl.config import Config
from atom_impl.device import CaptureError, Device
from atom_impl.device.software import Pool, SoftwareDevice
from atom_impl.utils.forward_context import Context, ForwardContext, forward_context
from atom_impl.utils.ladder import smallest_bucket
from atom_impl.utils.region_graph import (
    PHASES,
    MissingRecordingError,
    ReqGraph,
    TokenGraph,
    current_session,
    graph_pool,
    reset_graph_pool,
)
from atom_impl.utils.step_ledger import StepRecord
from suites.correctness.replay_unit import MAX_ROWS, WIDTH, PlannedError, Unit

STEPS = 24  # rules in the longest sequence
BUCKETS = st.sampled_from([8, 4, 2, 1])
ROWS = st.integers(1, MAX_ROWS)
PHASE = st.sampled_from(PHASES)
WHICH = st.integers(0, 1)  # the unit: the second records its phases apart
FAULTS = st.sampled_from(["segment", "region"])
_CONFIG = Config()


class ReplayMachine(RuleBasedStateMachine):
    """Two units and a request graph in one pool, and beside them the same work without a graph."""

    device: ClassVar[Device]
    #: the rules of the run that ended last; after a failure was shrunk, the shortest failing sequence
    last_run: ClassVar[list[str]] = []

    @initialize()
    def build(self) -> None:
        reset_graph_pool()
        type(self).last_run = []
        self.draw = torch.Generator().manual_seed(1)
        self.units = [Unit(self._normal(WIDTH, WIDTH)) for _ in range(3)]  # the third belongs to the request graph
        self.plain = [unit.twin() for unit in self.units]
        self.graphs = [TokenGraph("first", device=self.device)]
        self.graphs.append(TokenGraph("second", per_phase=True, device=self.device))
        self.requests = ReqGraph(self.device)
        self.x, self.out = self._zeros(MAX_ROWS, WIDTH), self._zeros(MAX_ROWS, WIDTH)
        self.frozen_scale: dict[int, float] = {}  # by request bucket
        self.metadata: dict[str, Any] = {"scale": 2.0, "fail": None, "max_seqlen_q": 1}
        self.metadata["shift"] = self._normal(WIDTH)
        self.asked: set[tuple[int, str, int]] = set()  # unit, phase and rows that a record pass asked for
        self.tables: dict[tuple[int, str | None, int], torch.Tensor] = {}  # what each recording was made with
        self.held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by unit: what a caller holds, what it was
        self.ballast: list[torch.Tensor] = []

    # -- token graphs

    @rule(which=WHICH, rows=BUCKETS, phase=PHASE, temporary=st.booleans())
    def record(self, which: int, rows: int, phase: str, temporary: bool) -> None:
        self._note(f"record {which} {rows} {phase}")
        key, graph = self._key(which, phase, rows), self.graphs[which]
        table, known = self._normal(WIDTH), key in self.tables
        if not known:
            self._warm_up(which, rows, table)
            self.tables[key] = table.clone()
        x, values = self._input(rows, temporary)
        with self._step(rows, phase, "record"):
            out = graph.record(self._forward(which, table), x, phase=phase)
        self.asked.add((which, phase, rows))
        self._compare(which, out, self._expect(which, values, self.tables[key]))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), temporary=st.booleans())
    def replay(self, data: st.DataObject, temporary: bool) -> None:
        which, phase = data.draw(st.sampled_from(sorted({key[:2] for key in self.asked})), "unit and phase")
        sizes = self._sizes(which, phase)
        rows = data.draw(st.integers(1, sizes[-1]), "rows")
        self._note(f"replay {which} {rows} {phase}")
        bucket = smallest_bucket(sizes, rows)
        assert bucket is not None
        x, values = self._input(rows, temporary)
        with self._step(rows, phase, "replay") as context:
            out = self.graphs[which].replay(x, phase=phase)
        assert context.record is not None
        assert (context.record.regions, context.record.fallback) == (3, None)
        padded = torch.cat([values, self._zeros(bucket - rows, WIDTH)])
        self._compare(which, out, self._expect(which, padded, self.tables[self._key(which, phase, bucket)]))

    @rule(which=WHICH, rows=ROWS, phase=PHASE)
    def replay_what_was_never_recorded(self, which: int, rows: int, phase: str) -> None:
        if smallest_bucket(self._sizes(which, phase), rows) is None:
            with self._step(rows, phase, "replay"):
                _raises(MissingRecordingError, lambda: self.graphs[which].replay(self.x[:rows], phase=phase))

    @rule(which=WHICH, rows=BUCKETS, phase=PHASE, where=FAULTS)
    def fail_while_recording(self, which: int, rows: int, phase: str, where: str) -> None:
        if self._key(which, phase, rows) in self.tables:
            return  # it would be replayed
        self._note(f"fail {which} {rows} {phase} {where}")
        table = self._normal(WIDTH)
        self._warm_up(which, rows, table)
        x, _ = self._input(rows, temporary=False)
        with self._step(rows, phase, "record", fail=where):
            _raises(PlannedError, lambda: self.graphs[which].record(self._forward(which, table), x, phase=phase))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def fail_while_replaying(self, data: st.DataObject) -> None:
        which, phase, rows = data.draw(st.sampled_from(sorted(self.asked)), "unit, phase and rows")
        self._note(f"fail {which} {rows} {phase} in a replay")
        self.held.pop(which, None)
        x, _ = self._input(rows, temporary=True)
        with self._step(rows, phase, "replay", fail="region"):
            _raises(PlannedError, lambda: self.graphs[which].replay(x, phase=phase))

    @rule(which=WHICH)
    def record_after_capture_has_closed(self, which: int) -> None:
        self.graphs[which].closed = True
        with self._step(1, "decode", "record"):
            _raises(CaptureError, lambda: self.graphs[which].record(lambda x: x, self.x[:1], phase="decode"))
        self.graphs[which].closed = False

    @precondition(lambda self: self.asked)
    @rule(which=WHICH)
    def clear(self, which: int) -> None:
        self._note(f"clear {which}")
        self.graphs[which].clear()
        self.asked = {key for key in self.asked if key[0] != which}
        self.tables = {key: table for key, table in self.tables.items() if key[0] != which}

    # -- the request graph

    @rule(rows=BUCKETS)
    def record_request(self, rows: int) -> None:
        self._note(f"record request {rows}")
        self.held.pop(2, None)
        self.tables[2, None, rows] = table = self._normal(WIDTH)
        self._warm_up(2, rows, table)
        self.frozen_scale[rows] = self.metadata["scale"]  # regions are recorded inline
        values = self._fill(rows)
        with self._step(rows, "decode", None):
            self.requests.record(lambda: self._full_forward(rows, table))
        self._compare_request(rows, values)

    @precondition(lambda self: self.requests.recordings())
    @rule(data=st.data())
    def replay_request(self, data: st.DataObject) -> None:
        rows, _ = data.draw(st.sampled_from(sorted(self.requests.recordings())), "bucket")
        self._note(f"replay request {rows}")
        values = self._fill(rows)
        with self._step(rows, "decode", None):
            self.requests.replay((rows, 0))
        self._compare_request(rows, values)

    @precondition(lambda self: self.requests.recordings())
    @rule()
    def clear_requests(self) -> None:
        self._note("clear requests")
        self.requests.clear()
        with self._step(1, "decode", None):
            _raises(MissingRecordingError, lambda: self.requests.replay((1, 0)))
        self.tables = {key: table for key, table in self.tables.items() if key[0] != 2}

    # -- what happens between steps

    @rule(scale=st.sampled_from([-1.0, 0.5, 3.0]))
    def change_metadata(self, scale: float) -> None:
        self._note(f"scale {scale}")
        self.metadata["scale"] = scale
        self.metadata["shift"].copy_(self._normal(WIDTH))

    @rule(sizes=st.lists(st.sampled_from([16, 64, 128, 300]), min_size=1, max_size=4), keep=st.booleans())
    def churn(self, sizes: list[int], keep: bool) -> None:
        """Other tenants of the allocator, that leave NaN behind; and of the pool, where that can be done."""
        self._note(f"churn {sizes}")
        made = [torch.full((size,), float("nan"), device=self.device.torch_device) for size in sizes]
        self.ballast = made if keep else []
        if isinstance(self.device, SoftwareDevice):
            self.device.poison_free(graph_pool(self.device))

    # -- what always holds

    @invariant()
    def what_callers_hold_stays_as_it_was(self) -> None:
        for which, (held, expected) in self.held.items():
            assert torch.equal(held, expected), f"the output of unit {which} changed while its caller held it"

    @invariant()
    def side_effects_are_those_of_the_plain_runs(self) -> None:
        for unit, plain in zip(self.units, self.plain, strict=True):
            assert torch.equal(unit.cache, plain.cache)

    @invariant()
    def no_session_is_left_open(self) -> None:
        assert current_session() is None, "a session is left open"

    @invariant()
    def sizes_are_counted_as_asked_for(self) -> None:
        for which, graph in enumerate(self.graphs):
            for phase in PHASES:
                assert graph.captured_sizes(phase) == self._sizes(which, phase)

    @invariant()
    def between_steps_the_pool_is_empty(self) -> None:
        """Recordings hold their pool by alias, so that the next one may use the same blocks."""
        pool = graph_pool(self.device)
        if isinstance(self.device, SoftwareDevice) and isinstance(pool, Pool):
            assert pool.used_bytes == 0, f"{pool.used_bytes} bytes of the pool are held between steps"

    def teardown(self) -> None:
        for graph in self.graphs:
            graph.clear()
        self.requests.clear()
        reset_graph_pool()
        with self.device.recording():  # raises where the device still has one open
            pass

    # -- the plumbing

    def _step(
        self, rows: int, phase: str, action: str | None, fail: str | None = None
    ) -> AbstractContextManager[ForwardContext]:
        context = Context(self.x[:rows], is_prefill=phase == "prefill", batch_size=rows, running_bs=rows)
        metadata = self.metadata | {"fail": fail}
        return forward_context(metadata, _CONFIG, context, tr_graph=action, record=StepRecord())

    def _warm_up(self, which: int, rows: int, table: torch.Tensor) -> None:
        """The run before a recording, on both sides."""
        values = self._fill(rows)
        with self._step(rows, "decode", None), self.device.warming_up():
            out = self._forward(which, table)(self.x[:rows])
            if which < 2:
                self.graphs[which].learn(out)
        del out
        self._expect(which, values, table)

    def _full_forward(self, rows: int, table: torch.Tensor) -> None:
        self.out[:rows].copy_(self._forward(2, table)(self.x[:rows]))

    def _compare_request(self, rows: int, values: torch.Tensor) -> None:
        live, self.metadata["scale"] = self.metadata["scale"], self.frozen_scale[rows]
        self._compare(2, self.out[:rows], self._expect(2, values, self.tables[2, None, rows]))
        self.metadata["scale"] = live

    def _forward(self, which: int, table: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: self.units[which].forward(x, table)

    def _expect(self, which: int, values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        with self._step(values.shape[0], "decode", None):
            return self.plain[which].forward(values, table)

    def _compare(self, which: int, got: torch.Tensor, expected: torch.Tensor) -> None:
        assert torch.equal(got, expected), f"unit {which}: {(got - expected).abs().max()} off the plain run"
        self.held[which] = (got, expected)

    def _input(self, rows: int, temporary: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """An argument, in the staging buffer or in a tensor that dies with the step, and its values."""
        values = self._fill(rows)
        return (values.clone() if temporary else self.x[:rows]), values

    def _fill(self, rows: int) -> torch.Tensor:
        values = self._normal(rows, WIDTH)
        self.x[:rows].copy_(values)
        return values

    def _sizes(self, which: int, phase: str) -> list[int]:
        return sorted(rows for unit, asked_for, rows in self.asked if (unit, asked_for) == (which, phase))

    def _key(self, which: int, phase: str, rows: int) -> tuple[int, str | None, int]:
        return which, phase if which == 1 else None, rows

    def _normal(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=self.draw).to(self.device.torch_device)

    def _zeros(self, *size: int) -> torch.Tensor:
        return torch.zeros(*size, device=self.device.torch_device)

    def _note(self, step: str) -> None:
        type(self).last_run.append(step)


def run_machine(device: Device, *, examples: int, steps: int = STEPS, shrink: bool = False) -> None:
    """Run `examples` sequences of up to `steps` rules on `device`; raises what the first failing one raised."""
    ReplayMachine.device = device
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=[hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if shrink else [])],
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(ReplayMachine, settings=settings)


def _raises(kind: type[Exception], call: Callable[[], object]) -> None:
    """`pytest.raises` keeps the traceback, and with it the tensors of the frames, which the pool would show."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
