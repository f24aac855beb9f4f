"""A prefill bucket picked by the rectangle of requests and longest prompt, where it holds tokens."""

from typing import Any

from atom_impl.utils.forward_mode import ForwardMode
from harness.mutants import Mutant, wrap


def by_rectangle(decide: Any, **shape: Any) -> Any:
    real = shape["scheduled_tokens"]
    rectangle = max(real, shape["scheduled_bs"] * shape["max_seqlen_q"])
    mode = decide(**{**shape, "scheduled_tokens": rectangle})
    rows = mode.running_tokens if mode.token_graph else real
    return mode._with(scheduled_tokens=real, running_tokens=rows)


def by_tokens(decide: Any, **shape: Any) -> Any:
    return decide(**{**shape, "scheduled_tokens": max(shape["scheduled_tokens"], shape["scheduled_bs"])})


MUTANT = Mutant(
    kind="LADDER",
    variant="prefill rows as a rectangle",
    changes="a ragged prefill takes the bucket of requests times the longest prompt",
    control_is="tokens, which are never fewer than requests.",
    caught_by=("dispatch.steps", "dispatch.plan"),
    says="The token count of the first step, the bucket that it ran in and the one that it should have.",
    plant=lambda: wrap(ForwardMode, "decide", by_rectangle),
    control=lambda: wrap(ForwardMode, "decide", by_tokens),
    mode="TR_HYBRID",
    workload="prefill",
)
