"""Exact counts of what the compile stack did.

A warm start that compiles thirty times again, or a step that recompiles, gives right results slowly and no test sees
it. Counts need no statistics, so tests and the harness compare them for equality.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields


@dataclass
class CompilationCounter:
    """Running totals of one process. Upstream's names, and those that upstream lacks below them."""

    num_models_seen: int = 0  # decorated modules that were traced
    num_graphs_seen: int = 0  # graphs that Dynamo handed to VllmBackend
    num_piecewise_graphs_seen: int = 0  # pieces, split operations included
    num_piecewise_capturable_graphs_seen: int = 0  # pieces without them
    num_backend_compilations: int = 0  # pieces that asked for code, for one shape
    num_inductor_compiles: int = 0  # Inductor really ran
    num_eager_compiles: int = 0
    num_cache_entries_updated: int = 0
    num_compiled_artifacts_saved: int = 0
    num_cudagraph_captured: int = 0
    dynamo_as_is_count: int = 0  # level 1
    num_cache_hits: int = 0  # artefacts loaded from disk
    num_piece_reuses: int = 0  # pieces served by an identical one of this process
    num_empty_calls: int = 0  # calls with no rows, which run uncompiled
    num_input_copies: int = 0  # cudagraph_copy_inputs: tensors copied into static buffers
    input_copy_bytes: int = 0
    cache_misses: Counter[str] = field(default_factory=Counter)  # by reason
    graph_breaks: int = 0
    recompiles: int = 0  # traces of a module that had been traced before

    def clone(self) -> CompilationCounter:
        return copy.deepcopy(self)

    def as_dict(self) -> dict[str, int]:
        """Every total as a number; `cache_misses` is their sum, each reason beside it as `cache_misses.<reason>`."""
        totals = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "cache_misses"}
        totals["cache_misses"] = sum(self.cache_misses.values())
        totals.update({f"cache_misses.{reason}": count for reason, count in sorted(self.cache_misses.items())})
        return totals

    @contextmanager
    def expect(self, **deltas: int) -> Iterator[None]:
        """Raise AssertionError unless each named total grows by exactly the given number within the block.

        A name that is no counter raises ValueError at once. Counters that are not named are not judged.
        """
        before = self.as_dict()
        for name in deltas:
            if name not in before and not name.startswith("cache_misses."):
                raise ValueError(f"{name!r} is no compilation counter; the counters are {', '.join(before)}")
        yield
        after = self.as_dict()
        changed = {name: count - before.get(name, 0) for name, count in after.items()}
        wrong = {name: (want, changed.get(name, 0)) for name, want in deltas.items() if changed.get(name, 0) != want}
        if wrong:
            lines = [f"{name} changed by {got}, expected {want}" for name, (want, got) in wrong.items()]
            also = ", ".join(f"{name} {count:+d}" for name, count in changed.items() if count and name not in wrong)
            raise AssertionError("; ".join(lines) + (f" (also changed: {also})" if also else ""))


#: The counter of this process.
compilation_counter = CompilationCounter()
