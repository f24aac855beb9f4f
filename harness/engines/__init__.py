"""Engines by name. Constructing one loads nothing; only `open` does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from harness.engines.base import Engine

#: name -> "module:attribute" of a callable that makes the engine
ENGINES: dict[str, str] = {"atom_impl": "harness.engines.atom_impl:AtomImpl"}


def get_engine(name: str) -> Engine:
    """The engine called `name`; an unknown name raises `ValueError` and lists the choices."""
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}; the engines are {', '.join(sorted(ENGINES))}")
    module, attribute = ENGINES[name].split(":")
    factory: Callable[[], Engine] = getattr(import_module(module), attribute)
    return factory()
