"""One layer's weights one per cent too large in the compiled model; only float32 can see it."""

from typing import Any

from torch import nn

from harness.engines.atom_impl import build
from harness.mutants import Mutant, wrap


def scaled(load: Any, config: Any, weights: Any, factor: float) -> Any:
    model = load(config, weights)
    if config.compilation_config.level == 3:
        linear = model.model.layers[1].mlp.down_proj
        linear.weight = nn.Parameter(linear.weight * factor, requires_grad=False)
    return model


MUTANT = Mutant(
    kind="NUMERICS",
    variant="one layer off by 1 %",
    changes="a matrix of the compiled model's second layer is multiplied by 1.01",
    control_is="multiplied by 1 + 2^-24, which rounds away.",
    caught_by=("G3",),
    says="Tensor and row, its error beside float64 and the error that eager's own allows.",
    plant=lambda: wrap(build, "load_model", lambda load, config, weights: scaled(load, config, weights, 1.01)),
    control=lambda: wrap(build, "load_model", lambda load, config, weights: scaled(load, config, weights, 1 + 2**-24)),
    level=3,
    mode="NONE",
    quick=True,
)
