"""Strong references to intermediates: no bucket gives its blocks back, and the pool is the sum of all."""

from typing import Any

from atom_impl.graphs.session import Session
from harness.mutants import Mutant, wrap


def strong(bind: Any, self: Any, tensor: Any) -> Any:
    bind(self, tensor)
    return tensor


def twice(bind: Any, self: Any, tensor: Any) -> Any:
    return bind(self, bind(self, tensor))


MUTANT = Mutant(
    kind="LIFETIME",
    variant="intermediates held",
    changes="a region's arguments are held strongly by the recording",
    control_is="an alias of an alias, which holds nothing.",
    caught_by=("closed.pool",),
    says="The pool's size beside its largest bucket's, the factor allowed, and LIFETIME or CAPCOST.",
    plant=lambda: wrap(Session, "_bind", strong),
    control=lambda: wrap(Session, "_bind", twice),
    mode="TR_HYBRID",
    model="random:tiny-llama?layers=16",
    cpu_only="a GPU takes pools in pieces of 2 MiB, and this model's intermediates fit into one",
)
