"""A ladder in steps loses the buckets between the steps, and the capture says nothing."""

from typing import Any

from atom_impl.model_engine import capture
from harness.mutants import Mutant, wrap


def even_only(buckets_of: Any, runner: Any) -> Any:
    return [bucket for bucket in buckets_of(runner) if bucket.rows % 2 == 0]


def from_a_set(buckets_of: Any, runner: Any) -> Any:
    return sorted(set(buckets_of(runner)), reverse=True)


MUTANT = Mutant(
    kind="LADDER",
    variant="bucket not captured",
    changes="odd buckets are left out of the capture",
    control_is="the same buckets through a set.",
    caught_by=("dispatch.ladder",),
    says="The buckets that were recorded, those that were asked for, and the missing one.",
    plant=lambda: wrap(capture, "buckets_of", even_only),
    control=lambda: wrap(capture, "buckets_of", from_a_set),
)
