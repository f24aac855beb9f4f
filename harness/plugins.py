"""Engines by name: the harness's own, and others that the environment names.

    HARNESS_ENGINES="mine=my_package.engine:MyEngine"

makes `--engine mine` reach a class of yours that fits `harness.engines.base.Engine`. HARNESS_PROBES replaces the probes
in the same way; a run measured so says that it is not a sign-off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.engines.base import Engine
    from harness.probes.base import ProbeContext, ProbeResult

ENGINES_VARIABLE = "HARNESS_ENGINES"
PROBES_VARIABLE = "HARNESS_PROBES"


def find_engine(name: str) -> Engine:
    """The engine called `name`. Raises `ValueError` listing the choices if nobody offers it."""
    registered = registered_engines()
    if name in registered:
        engine: Engine = _load(registered[name], ENGINES_VARIABLE)()
        return engine
    from harness.engines import get_engine

    return get_engine(name)


def find_probes() -> Callable[[ProbeContext], ProbeResult]:
    """The function that measures an opened cell."""
    if replaced := replaced_probes():
        probes: Callable[[ProbeContext], ProbeResult] = _load(replaced, PROBES_VARIABLE)
        return probes
    from harness.probes import measure as probes_of_the_harness

    return probes_of_the_harness


def registered_engines() -> dict[str, str]:
    """Name and "module:attribute" of every engine that the environment adds."""
    entries = [entry for entry in os.environ.get(ENGINES_VARIABLE, "").split(",") if entry.strip()]
    pairs = [entry.partition("=") for entry in entries]
    for entry, (name, _, target) in zip(entries, pairs, strict=True):
        if not name.strip() or ":" not in target:
            raise ValueError(f"{ENGINES_VARIABLE}: {entry!r} is not of the form name=module:attribute")
    return {name.strip(): target.strip() for name, _, target in pairs}


def replaced_probes() -> str:
    return os.environ.get(PROBES_VARIABLE, "").strip()


def _load(target: str, variable: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{variable}: {target!r} cannot be loaded: {error}") from error
