"""One batch size falls back to eager without a word: right answers at a third of the speed."""

from typing import Any

from atom_impl.utils.forward_mode import ForwardMode
from harness.mutants import Mutant, wrap


def eager_for_three(decide: Any, **shape: Any) -> Any:
    mode = decide(**shape)
    if shape["scheduled_bs"] != 3 or shape["allow_graphs"] is not None:
        return mode
    return mode._with(running_bs=3, running_tokens=3, use_cudagraph=False, token_graph=False)


def decided_twice(decide: Any, **shape: Any) -> Any:
    return decide(**shape) if decide(**shape) == decide(**shape) else None


MUTANT = Mutant(
    kind="LADDER",
    variant="silent eager",
    changes="a batch of three runs without a graph and gives no reason",
    control_is="the decision is taken twice and is the same.",
    caught_by=("dispatch.plan", "dispatch.holes", "dispatch.steps"),
    says="The batch size, that it runs eagerly, and the bucket that it should have had.",
    plant=lambda: wrap(ForwardMode, "decide", eager_for_three),
    control=lambda: wrap(ForwardMode, "decide", decided_twice),
    gpu=True,
)
