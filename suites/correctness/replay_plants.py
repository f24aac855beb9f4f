"""Lifetime faults as reports tell of them, each planted by replacing one method of the session or the recording.

They touch pool memory and memory that is still mapped, so that a planted fault gives wrong values and not a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from atom_impl.device.software import pool as pools
from atom_impl.graphs import session as graph_session
from atom_impl.graphs.recording import InputSlot
from atom_impl.utils import tree
from suites.correctness.replay_machine import ReplayMachine

Session = graph_session.Session
Plant = Callable[[pytest.MonkeyPatch], None]


def hold_handoffs_weakly(patch: pytest.MonkeyPatch) -> None:
    """The buffer between a region and the next segment is free as soon as the region is over."""
    original = Session._hand_off

    def hand_off(self: Any, result: Any, given: Any, handoffs: Any) -> Any:
        placed = original(self, result, given, handoffs)
        return tree.map_tensors(lambda t: self.device.alias(t) if self.device.owns(self.pool, t) else t, placed)

    patch.setattr(Session, "_hand_off", hand_off)


def copy_handoffs_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """A replay's region result lands in a buffer that no segment reads."""
    original = Session._hand_off

    def hand_off(self: Any, result: Any, given: Any, handoffs: Any) -> Any:
        placed = original(self, result, given, handoffs)
        for handoff in handoffs:
            if handoff.target is not None and not handoff.is_alias:
                handoff.target = torch.empty_like(handoff.target)
        return placed

    patch.setattr(Session, "_hand_off", hand_off)


def drop_outside_tensors(patch: pytest.MonkeyPatch) -> None:
    """What a region takes from outside the pool is no more held than what it takes from the pool."""
    patch.setattr(Session, "_bind", lambda self, tensor: pools.alias(tensor))


def keep_pool_tensors(patch: pytest.MonkeyPatch) -> None:
    """Every bucket keeps its own blocks, so that the pool becomes the buckets' sum."""
    patch.setattr(Session, "_bind", lambda self, tensor: tensor)


def return_the_pools_own_output(patch: pytest.MonkeyPatch) -> None:
    """What a replay returns is pool memory: right when it is returned, and anyone's afterwards."""
    original = Session.record

    def record(self: Any, forward: Any, deliver: Any) -> Any:
        kept: list[Any] = []

        def deliver_and_keep(result: Any) -> Any:
            if not self.breaks:  # a request graph returns nothing
                return deliver(result)
            kept.append(result)
            return self.device.alias(result)

        recording = original(self, forward, deliver_and_keep)
        with pools.poisoning(False):  # a GPU leaves a freed block as it was
            kept.clear()
        return recording

    patch.setattr(Session, "record", record)


def leave_the_tail(patch: pytest.MonkeyPatch) -> None:
    """Rows beyond the live ones stay what the previous step made them."""
    original = InputSlot._accept_tensor

    def accept(self: Any, own: torch.Tensor, given: torch.Tensor, *rest: Any) -> None:
        original(self, own[: given.shape[0]], given, *rest)

    patch.setattr(InputSlot, "_accept_tensor", accept)


def leave_failed_sessions_open(patch: pytest.MonkeyPatch) -> None:
    """A recording that failed in a region goes on being this thread's session."""
    original = Session.record

    def record(self: Any, forward: Any, deliver: Any) -> Any:
        try:
            return original(self, forward, deliver)
        except Exception:
            graph_session._thread.session = self
            raise

    def teardown(self: ReplayMachine) -> None:  # else the next example starts within this one's session
        graph_session._thread.session = None
        end_of_example(self)

    end_of_example = ReplayMachine.teardown
    patch.setattr(ReplayMachine, "teardown", teardown)
    patch.setattr(Session, "record", record)


def replay_nothing_before_a_region(patch: pytest.MonkeyPatch) -> None:
    """The region of a recording sees what its block held before, because a capture computes nothing."""
    original = Session._end

    def end(self: Any) -> None:
        graph = self._graph
        if self.breaks:
            graph.replay = lambda: None
        original(self)
        vars(graph).pop("replay", None)

    patch.setattr(Session, "_end", end)
