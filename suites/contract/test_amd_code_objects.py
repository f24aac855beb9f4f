"""The decode kernels as AMD's GPUs would load them: spills, scratch and too much LDS are slow or fatal there, and
silent everywhere else. Nothing here runs; Triton builds for a GPU that the machine does not have.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton

from atom_impl.model_ops import triton_targets
from atom_impl.model_ops.triton_attention import Launch
from atom_impl.model_ops.triton_targets import ARCHITECTURES, LDS_BYTES, SHAPES, CodeObject, ServingShape, build

EM_AMDGPU = 224
#: EF_AMDGPU_MACH of LLVM's AMDGPU usage guide: the low byte of an ELF file's flags.
MACHINES = {"gfx942": 0x4C, "gfx950": 0x4F}
KERNELS = ("store_kernel", "attend_kernel", "merge_kernel")


@pytest.fixture(scope="module", autouse=True)
def cold_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels are built here and now, not found in a cache of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def launch_of(kernel: str, shape: ServingShape) -> Launch:
    return triton_targets.launches(shape)[KERNELS.index(kernel)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_a_code_object_without_spills_within_the_lds(
    kernel: str, architecture: str, shape: ServingShape
) -> None:
    built = build(launch_of(kernel, shape), architecture)
    assert_is_code_object(built, architecture, kernel)
    taken = built.resources
    assert (taken.vgpr_spills, taken.sgpr_spills, taken.scratch_bytes) == (0, 0, 0)
    assert taken.lds_bytes <= LDS_BYTES
    assert 0 < taken.vgprs + taken.agprs <= 512
    assert (taken.mfma_instructions > 0) == (kernel == "attend_kernel")


def assert_is_code_object(built: CodeObject, architecture: str, kernel: str) -> None:
    assert built.elf[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", built.elf, 18) == (EM_AMDGPU,)
    assert struct.unpack_from("<I", built.elf, 48)[0] & 0xFF == MACHINES[architecture]
    assert kernel.encode() in built.elf


def test_a_tile_that_is_too_large_is_seen_in_the_figures() -> None:
    """The control: figures that are zero for every kernel would prove nothing."""
    launch = launch_of("attend_kernel", ServingShape(32, 8, 128))
    large = dataclasses.replace(launch, constants=launch.constants | {"TILE": 512})
    taken = build(large, "gfx942").resources
    assert taken.lds_bytes > LDS_BYTES
    assert taken.vgpr_spills > 0
    assert taken.scratch_bytes > 0


def test_the_record_is_what_its_triton_builds() -> None:
    """Another Triton than the record's may build other code; the record then still covers the same kernels."""
    record = json.loads(triton_targets.RECORD.read_text())
    found = triton_targets.survey()
    if record["triton"] == triton.__version__:
        assert record == found, f"the kernels changed; run `{record['command']}` and review the difference"
        return
    covered = [
        {architecture: {shape: sorted(kernels) for shape, kernels in shapes.items()} for architecture, shapes in each}
        for each in (record["kernels"].items(), found["kernels"].items())
    ]
    assert covered[0] == covered[1]


def test_a_record_that_differs_from_what_is_built_is_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "results" / "records" / "amd-codegen" / "paged_decode.json"
    monkeypatch.setattr(triton_targets, "RECORD", record)
    assert triton_targets.main([]) == 1
    assert triton_targets.main(["--record"]) == 0
    facts = json.loads(record.read_text())
    facts["kernels"]["gfx942"][SHAPES[0].name]["attend_kernel"]["vgprs"] += 1
    record.write_text(json.dumps(facts))
    assert triton_targets.main([]) == 1
