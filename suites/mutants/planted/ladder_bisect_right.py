"""`bisect_right` in place of `bisect_left`: a batch that fills its bucket is padded to the next one."""

from bisect import bisect_right
from collections.abc import Sequence

from atom_impl.utils import forward_mode
from harness.mutants import Mutant, swap


def one_up(sizes: Sequence[int], needed: int) -> int | None:
    index = bisect_right(sizes, needed)
    return sizes[index] if index < len(sizes) else None


def scanned(sizes: Sequence[int], needed: int) -> int | None:
    return min((size for size in sizes if size >= needed), default=None)


MUTANT = Mutant(
    kind="LADDER",
    variant="bisect_right",
    changes="dispatch looks for a bucket that is larger than the batch",
    control_is="a linear search for the same bucket.",
    caught_by=("dispatch.plan", "dispatch.steps"),
    says="Every batch size that goes elsewhere, with the bucket that it gets and the one that it should.",
    plant=lambda: swap(forward_mode, "smallest_bucket", one_up),
    control=lambda: swap(forward_mode, "smallest_bucket", scanned),
    quick=True,
)
