"""A gate that passes on NaN: an accuracy column full of it was once published as a pass."""

from typing import Any

import msgspec

from harness.mutants import Mutant, wrap
from harness.probes import numerics
from harness.records import Status


def passing(gate: Any, evidence: Any, figure: float) -> Any:
    return msgspec.structs.replace(gate(evidence), status=Status.PASS, measured=figure)


MUTANT = Mutant(
    kind="HARNESS",
    variant="NaN passes",
    changes="gate G3 passes and says that it measured NaN",
    control_is="it says that it measured zero.",
    caught_by=("G3",),
    says="The gate, and that NaN is never a pass.",
    plant=lambda: wrap(numerics, "compiler_gate", lambda gate, evidence: passing(gate, evidence, float("nan"))),
    control=lambda: wrap(numerics, "compiler_gate", lambda gate, evidence: passing(gate, evidence, 0.0)),
)
