"""Guards against lifetime faults that need a sequence: two buckets, a held output, a freed block, in the right order.

The machine of `replay_machine.py` runs random sequences against plain runs. A machine that finds nothing proves
nothing, so each lifetime fault that reports tell of is planted in turn, and the machine has to find it.
"""

from __future__ import annotations

import pytest

from atom_impl.device import get_device
from suites.correctness.replay_machine import ReplayMachine, run_machine
from suites.correctness.replay_plants import (
    Plant,
    copy_handoffs_elsewhere,
    drop_outside_tensors,
    hold_handoffs_weakly,
    keep_pool_tensors,
    leave_failed_sessions_open,
    leave_the_tail,
    replay_nothing_before_a_region,
    return_the_pools_own_output,
)

pytestmark = pytest.mark.usefixtures("inference")

EXAMPLES = 120  # over eight seeds, every plant was found within 27


#: Each fault, and what the machine has to say of it.
PLANTS: dict[Plant, str] = {
    hold_handoffs_weakly: "off the plain run",
    copy_handoffs_elsewhere: "off the plain run",
    drop_outside_tensors: "has been freed or replaced",
    keep_pool_tensors: "bytes of the pool are held between steps",
    return_the_pools_own_output: "changed while its caller held it",
    leave_the_tail: "off the plain run",
    leave_failed_sessions_open: "a session is left open",
    replay_nothing_before_a_region: "off the plain run",
}


def test_random_sequences_equal_the_plain_runs_bit_for_bit(device: str) -> None:
    run_machine(get_device(device), examples=EXAMPLES)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_lifetime_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError), match=PLANTS[plant]):
        run_machine(get_device("cpu"), examples=EXAMPLES)


@pytest.mark.parametrize("plant", [return_the_pools_own_output, leave_failed_sessions_open])
def test_a_failing_sequence_shrinks_to_a_few_rules(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_machine(get_device("cpu"), examples=EXAMPLES, steps=12, shrink=True)
    # What shrinking cannot delete it makes as simple as it can, and a change of the metadata is the simplest rule.
    needed = [rule for rule in ReplayMachine.last_run if not rule.startswith("scale")]
    assert 1 <= len(needed) <= 3, ReplayMachine.last_run
