"""`atom_impl` behind the harness's door. The only part of the harness that imports it."""

from harness.engines.atom_impl.engine import AtomImpl
from harness.engines.atom_impl.session import AtomSession

__all__ = ["AtomImpl", "AtomSession"]
