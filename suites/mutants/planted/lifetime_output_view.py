"""A token graph hands out its result where it lies in the pool, and the next bucket's replay takes the block."""

from typing import Any

from atom_impl.utils import region_graph, tree
from atom_impl.utils.forward_context import get_forward_context
from atom_impl.utils.step_ledger import CopyKind
from harness.mutants import Mutant, wrap


def view_of_the_pool(deliver: Any, self: Any, result: Any, label: str) -> Any:
    record: Any = get_forward_context().record
    for _, leaf in tree.tensors(result):
        record.copied(CopyKind.OUTPUT, leaf.nbytes)
    return result


def view_of_the_copy(deliver: Any, self: Any, result: Any, label: str) -> Any:
    return tree.map_tensors(lambda leaf: leaf[:], deliver(self, result, label))


MUTANT = Mutant(
    kind="LIFETIME",
    variant="view of the graph's output",
    changes="the result is not copied out of the pool, though the ledger says so",
    control_is="a view of the copy.",
    caught_by=("audit.output",),
    says="The bucket, the output copy that was claimed and not made, and that the caller reads the pool: LIFETIME.",
    plant=lambda: wrap(region_graph._OwnedOutputs, "deliver", view_of_the_pool),
    control=lambda: wrap(region_graph._OwnedOutputs, "deliver", view_of_the_copy),
    mode="TR_HYBRID",
    gpu=True,
)
