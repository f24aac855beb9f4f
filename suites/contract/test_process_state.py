"""Upstream replaced functions of torch when it was imported, and again while it compiled; a user's error was an assert.

A replaced function changes every other model of the process, and an assert is gone under `python -O`. Both show only
in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

LEAVES_TORCH_ALONE = """
import gc, importlib, pkgutil, types
import torch, torch._dynamo.symbolic_convert, torch._inductor.codecache, torch._inductor.compile_fx
from torch._dynamo import convert_frame
from torch._functorch._aot_autograd import autograd_cache

WATCHED = [gc, torch, torch.cuda, torch._dynamo.symbolic_convert, convert_frame, torch._inductor.codecache,
           torch._inductor.compile_fx, autograd_cache]
CODE = (types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod)

def functions():
    owners = {id(owner): owner for module in WATCHED for owner in (module, *vars(module).values())
              if isinstance(owner, (types.ModuleType, type)) and (owner in WATCHED or isinstance(owner, type))}
    return {(owner.__name__, name): value for owner in owners.values() for name, value in vars(owner).items()
            if isinstance(value, CODE)}

def told(stage, before):
    after = functions()
    print(stage, len(before), sorted(key for key, value in before.items() if after.get(key) is not value))

before = functions()
import atom_impl
for module in pkgutil.walk_packages(atom_impl.__path__, "atom_impl."):
    importlib.import_module(module.name)
told("import", before)

from suites.contract.toy_pieces import toy, toy_batch, toy_config
before = functions()
with torch.inference_mode():
    model, batch = toy(toy_config(3, use_inductor=True), layers=1), toy_batch(3)
    assert torch.allclose(model(*batch), model.forward(*batch), atol=1e-5)
told("compile", before)
print("hooks", len(convert_frame._bytecode_hooks))
"""


def run(tmp_path: Path, code: str, *options: str) -> list[str]:
    """The lines that `code` prints in an interpreter of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ATOM_CACHE_ROOT": str(tmp_path / "cache")}
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_neither_an_import_nor_a_compile_replaces_a_function_of_torch(tmp_path: Path) -> None:
    imported, compiled, hooks = run(tmp_path, LEAVES_TORCH_ALONE)
    for line, stage in ((imported, "import"), (compiled, "compile")):
        name, watched, replaced = line.split(" ", 2)
        assert (name, replaced) == (stage, "[]")
        assert int(watched) > 1000, "too little was watched to tell"
    assert hooks == "hooks 0"


MISUSED = """
import torch
from atom_impl.config import CompilationConfig, Config, get_current_atom_config
from atom_impl.utils.custom_register import direct_register_custom_op
from atom_impl.utils.decorators import support_torch_compile
from atom_impl.utils.forward_context import get_forward_context

assert False, "asserts must be off, or this shows nothing"

def op(x: torch.Tensor) -> None: pass

for misuse in (
    lambda: CompilationConfig(level=7),
    lambda: CompilationConfig(compile_sizes=["cudagraph_sizes"]),
    lambda: CompilationConfig(level=2).set_splitting_ops_for_v1(),
    lambda: CompilationConfig(cudagraph_capture_sizes=[4, 0]),
    lambda: Config(device="cpu", max_num_seqs=0),
    lambda: get_current_atom_config(),
    lambda: get_forward_context(),
    lambda: support_torch_compile(type("Empty", (torch.nn.Module,), {})),
    lambda: direct_register_custom_op("state_op", op, mutates_args=["y"]),
):
    try:
        misuse()
    except Exception as error:
        print(type(error).__name__, repr(str(error)))
    else:
        print("nothing")
"""


def test_a_users_error_is_told_without_asserts_too(tmp_path: Path) -> None:
    kinds = [line.split(" ", 1)[0] for line in run(tmp_path, MISUSED, "-O")]
    assert kinds == ["ValueError"] * 5 + ["RuntimeError"] * 2 + ["TypeError", "ValueError"]
