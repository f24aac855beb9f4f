"""Which cells `atom_impl` takes, and how one is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import atom_impl
from atom_impl.config import OP_BACKENDS, CompilationLevel, CUDAGraphMode
from atom_impl.device import set_debug_replay
from atom_impl.model_loader import resolve_model
from atom_impl.utils.compilation_counter import compilation_counter
from harness.cells import Cell
from harness.engines.atom_impl.build import Build, build_of, config_of
from harness.engines.atom_impl.session import AtomSession
from harness.engines.base import Engine, SessionSpec, Support

LEVELS = range(CompilationLevel.PIECEWISE + 1)


class AtomImpl(Engine):
    name = "atom_impl"

    def __init__(self) -> None:
        self._builds: dict[tuple[Any, ...], Build] = {}

    def versions(self) -> Mapping[str, str]:
        return {"atom_impl": atom_impl.__version__, "torch": torch.__version__}

    def supports(self, cell: Cell) -> Support:
        """Raises `ValueError` for values that no cell can have; returns a reason for cells that are declared, not
        run.
        """
        mode = CUDAGraphMode.from_name(cell["mode"])
        if cell["level"] not in LEVELS:
            raise ValueError(f"level {cell['level']!r}: no such level; choose one of {', '.join(map(str, LEVELS))}")
        resolve_model(cell["model"])
        if cell["op_backend"] not in OP_BACKENDS:
            raise ValueError(
                f"op_backend {cell['op_backend']!r}: no such backend; choose one of {', '.join(OP_BACKENDS)}"
            )
        if cell["op_backend"] == "aiter":
            return Support(False, "op backend 'aiter' has no attention body in this engine; it has torch and triton")
        if cell["ranks"] != 1:
            return Support(False, f"{cell['ranks']} ranks: this engine runs one")
        eager_prefill = not mode.uses_tr_hybrid() and mode is not CUDAGraphMode.NONE
        if cell["workload"] == "prefill" and eager_prefill:
            return Support(False, f"prefill is eager under {mode.name}; it is measured in the cell with mode NONE")
        return Support(True)

    def prepare(self, cell: Cell) -> None:
        resolve_model(cell["model"]).tokenizer()  # reads from the converted folder, which is made when it is missing

    def open(self, cell: Cell, spec: SessionSpec) -> AtomSession:
        if spec.options.get("debug_replay"):
            set_debug_replay(True)
        config = config_of(cell, spec)
        axes = (cell["model"], cell["level"], cell["op_backend"])
        key = (*axes, spec.dtype, spec.device, spec.max_model_len, spec.block_size)
        before = compilation_counter.as_dict()
        if key not in self._builds:
            self._builds[key] = build_of(cell, spec, config)
        return AtomSession(config, spec, self._builds[key], before)
