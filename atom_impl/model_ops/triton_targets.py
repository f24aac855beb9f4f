"""Code objects of the Triton kernels for GPUs that this machine does not have, and what each kernel takes of one.

A kernel that spills, or whose tiles outgrow the LDS, is found by whoever first runs it on that GPU: too late, and seen
as nothing but a slow step. Triton builds for any target anywhere, so registers, spills and LDS are read here.

    python -m atom_impl.model_ops.triton_targets                compare with the record
    python -m atom_impl.model_ops.triton_targets --record       write it anew
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.interpreter import InterpretedFunction

from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.model_ops.triton_attention import Launch, decode_launches
from atom_impl.utils.forward_context import AttentionMetaData

RECORD = Path(__file__).parents[2] / "results" / "records" / "amd-codegen" / "paged_decode.json"
#: MI300X and MI325X; MI350X and MI355X
ARCHITECTURES = ("gfx942", "gfx950")
WAVEFRONT_LANES = 64
#: A workgroup's share of a CU's local memory on gfx942; gfx950 has more.
LDS_BYTES = 64 * 1024

_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_FACTS = {
    "vgprs": "vgpr_count",
    "agprs": "agpr_count",
    "sgprs": "sgpr_count",
    "vgpr_spills": "vgpr_spill_count",
    "sgpr_spills": "sgpr_spill_count",
    "scratch_bytes": "private_segment_fixed_size",
}


@dataclass(frozen=True)
class ServingShape:
    """One layer's decode as it is served: bfloat16, `width` blocks a request. The batch changes no code."""

    heads: int
    kv_heads: int
    head_dim: int
    queries: int = 1
    block_size: int = 16
    width: int = 512

    @property
    def name(self) -> str:
        return f"{self.heads} heads over {self.kv_heads} of {self.head_dim}, {self.queries} queries"


#: SmolLM2-135M; an 8B Llama; the same while it verifies three draft tokens.
SHAPES = (ServingShape(9, 3, 64), ServingShape(32, 8, 128), ServingShape(32, 8, 128, queries=4))


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: registers of a lane, bytes of LDS a workgroup, matrix instructions in its code."""

    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    lds_bytes: int
    warps: int
    mfma_instructions: int


@dataclass(frozen=True)
class CodeObject:
    """One built kernel: the ELF file that the driver would load, and its resources."""

    elf: bytes
    resources: Resources


def launches(shape: ServingShape, requests: int = 8) -> tuple[Launch, ...]:
    """The launches of one decode step of `shape`, laid out on tensors without memory."""
    rows = requests * shape.queries

    def make(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    q, out = make(rows, shape.heads, shape.head_dim), make(rows, shape.heads, shape.head_dim)
    k, v = make(rows, shape.kv_heads, shape.head_dim), make(rows, shape.kv_heads, shape.head_dim)
    cache = (requests * shape.width + 1, shape.block_size, shape.kv_heads, shape.head_dim)
    meta = AttentionMetaData(
        cu_seqlens_q=make(requests + 1, dtype=torch.int32),
        slot_mapping=make(rows, dtype=torch.int64),
        context_lens=make(requests, dtype=torch.int32),
        block_tables=make(requests, shape.width, dtype=torch.int32),
        live_rows=make(1, dtype=torch.int32),
        max_seqlen_q=shape.queries,
    )
    return decode_launches(q, k, v, out, KVCacheTensor(make(*cache), make(*cache)), meta, shape.head_dim**-0.5)


def build(launch: Launch, architecture: str) -> CodeObject:
    """Compile `launch`, specialised as it would be on a GPU, into a code object for `architecture`."""
    target = GPUTarget("hip", architecture, WAVEFRONT_LANES)
    compiled = triton.compile(_source(launch), target=target, options={})
    text = compiled.asm["amdgcn"]
    facts = {name: _fact(text, key) for name, key in _FACTS.items()}
    resources = Resources(
        **facts,
        lds_bytes=compiled.metadata.shared,
        warps=compiled.metadata.num_warps,
        mfma_instructions=text.count("v_mfma_"),
    )
    return CodeObject(compiled.asm["hsaco"], resources)


def survey() -> dict[str, Any]:
    """Every kernel of every shape for every architecture, as the record holds it."""
    kernels = {
        architecture: {
            shape.name: {
                launch.kernel.fn.__name__: asdict(build(launch, architecture).resources) for launch in launches(shape)
            }
            for shape in SHAPES
        }
        for architecture in ARCHITECTURES
    }
    command = "python -m atom_impl.model_ops.triton_targets --record"
    return {"command": command, "triton": triton.__version__, "cache_dtype": "bfloat16", "kernels": kernels}


def _source(launch: Launch) -> ASTSource:
    """The specialisation that Triton makes of a call: integers of 1 become constants, multiples of 16 are marked."""
    if isinstance(launch.kernel, InterpretedFunction):
        raise ValueError("TRITON_INTERPRET is set, so there is nothing to compile; unset it to build code objects")
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    marks: dict[tuple[int, ...], list[list[Any]]] = {}
    arguments = dict(zip(launch.kernel.arg_names, [*launch.tensors, *launch.sizes], strict=False))
    for parameter in launch.kernel.params:
        value: Any = arguments.get(parameter.name, launch.constants.get(parameter.name))
        tensor = isinstance(value, torch.Tensor)
        if parameter.is_constexpr or (not tensor and value == 1 and not parameter.do_not_specialize):
            signature[parameter.name] = "constexpr"
            constants[(parameter.num,)] = value
            continue
        signature[parameter.name] = _POINTERS[value.dtype] if tensor else "i32"
        kept = parameter.do_not_specialize or parameter.do_not_specialize_on_alignment
        if not kept and (tensor or value % 16 == 0):
            marks[(parameter.num,)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature, constants, marks)


def _fact(assembly: str, key: str) -> int:
    found = re.search(rf"^\s*(?:- )?\.{key}:\s*(\d+)\s*$", assembly, re.MULTILINE)
    if found is None:
        raise ValueError(f"the assembly of this Triton ({triton.__version__}) states no .{key}; read it elsewhere")
    return int(found.group(1))


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if the record is as built here, 1 if it differs."""
    parser = argparse.ArgumentParser(description="Build the decode kernels for AMD GPUs and state what they take.")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(RECORD.parents[3])}")
    wanted = parser.parse_args(arguments)
    text = json.dumps(survey(), indent=2) + "\n"
    if wanted.record:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(text)
    print(text, end="")
    return 0 if RECORD.exists() and json.loads(RECORD.read_text()) == json.loads(text) else 1


if __name__ == "__main__":
    sys.exit(main())
