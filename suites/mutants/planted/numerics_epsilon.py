"""A norm's epsilon of 1e-2 in compiled code: every bfloat16 gate of the field lets it through."""

from typing import Any

from atom_impl.model_ops.norm import RMSNorm
from harness.engines.atom_impl import build
from harness.mutants import Mutant, wrap


def with_epsilon(load: Any, config: Any, weights: Any, epsilon: float) -> Any:
    model = load(config, weights)
    for norm in model.modules():
        if isinstance(norm, RMSNorm) and config.compilation_config.level == 3:
            norm.eps = epsilon
    return model


MUTANT = Mutant(
    kind="NUMERICS",
    variant="epsilon 1e-2",
    changes="the compiled model's norms have an epsilon of 1e-2 in place of 1e-5",
    control_is="1.0001e-5, less than float32 rounds.",
    caught_by=("G3",),
    says="Tensor and row, its error beside float64 and the error that eager's own allows.",
    plant=lambda: wrap(build, "load_model", lambda load, config, weights: with_epsilon(load, config, weights, 1e-2)),
    control=lambda: wrap(
        build, "load_model", lambda load, config, weights: with_epsilon(load, config, weights, 1.0001e-5)
    ),
    level=3,
    mode="NONE",
)
