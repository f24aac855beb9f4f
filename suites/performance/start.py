"""How long a server waits before its first replay: compile, capture and both, with a cold and with a warm cache.

One release made start-up 40 % slower and nothing but users noticed. Each cell starts in a process of its own; cold
means an empty cache folder of this row's own, warm means the same folder once more.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness.records import PROTOCOL_VERSION

from .decode import MODELS
from .figures import Figures, decode_figures, measure

PROFILE = os.environ.get("START_PROFILE") or str(Path(__file__).with_name("start.toml"))
CACHES = ["cold", "warm"]


class Start:
    """Seconds, of a level 3 engine with request graphs."""

    param_names = ("model", "level", "mode", "cache")
    params = (MODELS, [3], ["FULL"], CACHES)
    unit = "seconds"
    timeout = 120
    version = f"protocol {PROTOCOL_VERSION}"

    def setup_cache(self) -> dict[str, Figures]:
        from atom_impl.compilation.cache_identity import (
            cache_root,  # torch takes seconds, and each row imports this module
        )

        with tempfile.TemporaryDirectory(prefix="asv-start-") as folder:
            own = {name: str(Path(folder, name)) for name in ("ATOM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR")}
            own["TRITON_CACHE_DIR"] = str(Path(folder, "triton"))
            weights = cache_root() / "weights"
            if weights.is_dir():  # fetching and converting weights is no part of a start
                Path(own["ATOM_CACHE_ROOT"]).mkdir()
                Path(own["ATOM_CACHE_ROOT"], "weights").symlink_to(weights)
            return {cache: decode_figures(measure(PROFILE, Path(folder, cache), own)) for cache in CACHES}

    setup_cache.timeout = 3600  # type: ignore[attr-defined]

    def track_compile_s(self, runs: dict[str, Figures], model: str, level: int, mode: str, cache: str) -> float:
        return runs[cache].value("compile_s", model, level, mode)

    def track_capture_s(self, runs: dict[str, Figures], model: str, level: int, mode: str, cache: str) -> float:
        return runs[cache].value("capture_s", model, level, mode)

    def track_first_graph_s(self, runs: dict[str, Figures], model: str, level: int, mode: str, cache: str) -> float:
        return runs[cache].value("first_graph_s", model, level, mode)
