"""How long a server waits before its first replay: compile, capture and both, with a cold and with a warm cache.

One release made start-up 40 % slower and nothing but users noticed. Each cell starts in a process of its own; cold
means an empty cache folder of this cell's own, warm means the same folder once more.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness.records import PROTOCOL_VERSION

from .figures import Figures, Key, NoFigure, axes_of, decode_figures, measure, store

PROFILE = os.environ.get("START_PROFILE") or str(Path(__file__).with_name("start.toml"))
AXES = axes_of(PROFILE)
CACHES = ["cold", "warm"]


class Start:
    """Seconds from opening the engine to a graph that can be replayed, and its two parts."""

    param_names = ("model", "level", "mode", "ladder", "cache")
    params = (AXES.models, AXES.levels, AXES.graphs, [AXES.ladder], CACHES)
    unit = "seconds"
    timeout = 120
    version = f"protocol {PROTOCOL_VERSION}"

    def setup_cache(self) -> dict[str, Figures]:
        made = {cache: Figures() for cache in CACHES}
        for key in ((model, level, mode) for model in AXES.models for level in AXES.levels for mode in AXES.graphs):
            with tempfile.TemporaryDirectory(prefix="asv-start-") as folder:
                for cache in CACHES:
                    _add(made[cache], key, _caches(Path(folder)))
        return made

    setup_cache.timeout = 3600  # type: ignore[attr-defined]

    def track_compile_s(
        self, runs: dict[str, Figures], model: str, level: int, mode: str, ladder: str, cache: str
    ) -> float:
        return runs[cache].value("compile_s", model, level, mode, cache=cache)

    def track_capture_s(
        self, runs: dict[str, Figures], model: str, level: int, mode: str, ladder: str, cache: str
    ) -> float:
        return runs[cache].value("capture_s", model, level, mode, cache=cache)

    def track_first_graph_s(
        self, runs: dict[str, Figures], model: str, level: int, mode: str, ladder: str, cache: str
    ) -> float:
        return runs[cache].value("first_graph_s", model, level, mode, cache=cache)


def _add(made: Figures, key: Key, caches: dict[str, str]) -> None:
    """Start one cell and add its figures; a cell that cannot be started is a failed row of its own."""
    model, level, mode = key
    chosen = [*AXES.narrowing, "--model", model, "--level", str(level), "--mode", mode]
    try:
        run = measure(PROFILE, store(), caches, chosen)
    except NoFigure as failure:
        made.failed[key] = str(failure)
        return
    found = decode_figures(run)
    made.figures.extend(found.figures)
    made.failed.update(found.failed)


def _caches(folder: Path) -> dict[str, str]:
    """Variables that put every cache below `folder`. Fetching and converting weights is no part of a start."""
    from atom_impl.compilation.cache_identity import cache_root  # torch takes seconds, and each row imports this module

    own = {name: str(folder / name) for name in ("ATOM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    weights, linked = cache_root() / "weights", folder / "ATOM_CACHE_ROOT" / "weights"
    if weights.is_dir() and not linked.exists():
        linked.parent.mkdir(exist_ok=True)
        linked.symlink_to(weights)
    return own
