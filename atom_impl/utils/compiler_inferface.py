"""The compilers at the guide's path, whose spelling is the guide's. What stands behind it is in `compilation/`."""

from atom_impl.compilation.compilers import (
    Compiled,
    CompilerInterface,
    EagerAdaptor,
    Handle,
    InductorStandaloneAdaptor,
    set_inductor_config,
)
from atom_impl.compilation.inductor_adaptor import AlwaysHitShapeEnv, InductorAdaptor

__all__ = [
    "AlwaysHitShapeEnv",
    "Compiled",
    "CompilerInterface",
    "EagerAdaptor",
    "Handle",
    "InductorAdaptor",
    "InductorStandaloneAdaptor",
    "set_inductor_config",
]
