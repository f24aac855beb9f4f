"""What was traced and compiled, as files for people.

Upstream wrote through an optional package into a directory that might not exist, and swallowed whatever went wrong.
These files need nothing but torch; with depyf installed the bytecode is decompiled as well.
"""

from __future__ import annotations

import dis
import importlib
import io
import logging
import time
from pathlib import Path
from types import CodeType

import torch.fx

from atom_impl.compilation.artefact_store import write_atomically
from atom_impl.compilation.cache_identity import rank
from atom_impl.config import CompilationConfig, Config

logger = logging.getLogger(__name__)


def dump_dir(compilation: CompilationConfig) -> Path | None:
    """`<debug_dump_path>/rank_<i>`, made if need be; None when nothing is to be dumped."""
    if not compilation.debug_dump_path:
        return None
    path = Path(compilation.debug_dump_path).expanduser() / f"rank_{rank()}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def start_monitoring_torch_compile(config: Config, graph: torch.fx.GraphModule, name: str) -> float:
    """Dump the traced graph of model `name`, and return the time at which its compile began."""
    directory = dump_dir(config.compilation_config)
    if directory is not None:
        text = graph.print_readable(print_output=False)
        write_atomically(_free(directory, f"{name}_graph", ".py"), text)
    return time.perf_counter()


def end_monitoring_torch_compile(config: Config, name: str, started: float) -> None:
    """Log how long the compile of model `name` took."""
    logger.info(
        "compiled %s at level %d in %.1f s", name, config.compilation_config.level, time.perf_counter() - started
    )


def dump_code(config: Config, code: CodeType, name: str) -> None:
    """Write compiled bytecode as `transformed_code.py`, decompiled where depyf can."""
    directory = dump_dir(config.compilation_config)
    if directory is not None:
        write_atomically(_free(directory, "transformed_code", ".py"), f"# {name}\n{describe_code(code)}\n")


def describe_code(code: CodeType) -> str:
    """Source of `code` where depyf is installed and copes, else its disassembly."""
    try:
        depyf = importlib.import_module("depyf")
        return str(depyf.decompile(code))
    except Exception as error:  # an optional aid: a decompiler that fails must not hide what it was to explain
        if not isinstance(error, ImportError):
            logger.debug("depyf could not decompile %s: %s", code.co_name, error)
    text = io.StringIO()
    dis.dis(code, file=text)
    return "\n".join(f"# {line}" for line in text.getvalue().splitlines())


def _free(directory: Path, stem: str, suffix: str) -> Path:
    """`stem.suffix`, or the first numbered name that is free: a drafter's dump must not replace the target's."""
    path, number = directory / f"{stem}{suffix}", 1
    while path.exists():
        path, number = directory / f"{stem}_{number}{suffix}", number + 1
    return path
