"""A fact that is missing from a record reads like one that did not matter.

Two figures are then compared across a library or a setting that nobody wrote down.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.host import Host, Outcome, TorchFacts, run_command, version_tuple
from harness.machine import fingerprint, recorded_variables, rocm_version
from suites.instrument.fake_host import CPU_TORCH, CUDA_TORCH, ROCM_TORCH, make_host


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, f"{path}[]")
    else:
        yield path, value


def test_a_machine_that_tells_nothing_still_gives_every_fact_as_unknown(tmp_path: Path) -> None:
    silent = Host(
        root=tmp_path / "empty",
        environ={},
        run=lambda command: None,
        version=lambda name: None,
        package_folder=lambda name: None,
        torch=lambda: TorchFacts(error="ImportError"),
        which=lambda name: None,
    )
    told = make_host(tmp_path / "laptop")
    quiet, full = fingerprint(silent), fingerprint(told)
    assert set(quiet) == set(full)
    for group in ("cpu", "numa", "os", "software", "now"):
        assert set(quiet[group]) == set(full[group])
    assert quiet["software"]["torch"] == quiet["software"]["compiler"] == quiet["memory_mib"] == "unknown"
    assert all(value is not None and value != "" for _, value in leaves(quiet))


def test_a_fingerprint_is_plain_data_that_a_record_can_carry() -> None:
    facts = fingerprint()
    assert json.loads(json.dumps(facts)) == facts


def test_what_a_laptop_says_of_itself_is_read_from_the_right_places(tmp_path: Path) -> None:
    facts = fingerprint(make_host(tmp_path, {"/run/.containerenv": 'engine="x"\nimageid="sha256:0123"\n'}))
    assert facts["cpu"]["model"] == "Some CPU (R) 3000"
    assert facts["cpu"]["flags"] == ["amx_tile", "avx512f"]
    assert facts["memory_mib"] == 16384
    assert facts["numa"] == {"nodes": 1, "cpus": {"node0": "0-3"}, "balancing": "0"}
    assert (facts["os"]["name"], facts["os"]["image_digest"]) == ("Some Linux 12", "sha256:0123")
    assert facts["software"]["compiler"] == "g++ (Some Linux) 12.2.0"
    assert facts["software"]["transformers"] == "5.0.0"
    assert (facts["gpus"], facts["visible_gpus"]) == ([], 0)


def test_aiter_means_amds_distribution_and_no_other(tmp_path: Path) -> None:
    assert fingerprint(make_host(tmp_path, version={"aiter": "0.13.0"}.get))["software"]["aiter"] == "unknown"
    assert fingerprint(make_host(tmp_path, version={"amd-aiter": "0.1.7"}.get))["software"]["aiter"] == "0.1.7"


def test_only_variables_with_known_prefixes_are_recorded_and_what_may_be_confidential_is_hidden() -> None:
    recorded = recorded_variables(
        {
            "HOME": "/home/somebody",
            "AWS_SECRET_ACCESS_KEY": "s3cret",
            "HF_TOKEN": "s3cret",
            "CUDA_HOME": "/usr",
            "HIP_VISIBLE_DEVICES": "0",
            "HSA_XNACK": "1",
            "ROCR_VISIBLE_DEVICES": "1",
            "OMP_NUM_THREADS": "2",
            "TRITON_CACHE_DIR": "/home/somebody/cache",
            "TORCHINDUCTOR_REDIS_URL": "redis://me:s3cret@host",
            "PYTORCH_API_TOKEN": "s3cret",
        }
    )
    assert recorded == {
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_XNACK": "1",
        "OMP_NUM_THREADS": "2",
        "PYTORCH_API_TOKEN": "(hidden)",
        "ROCR_VISIBLE_DEVICES": "1",
        "TORCHINDUCTOR_REDIS_URL": "(hidden)",
        "TRITON_CACHE_DIR": "~/cache",
    }


@pytest.mark.parametrize(
    ("torch", "files", "versions", "expected"),
    [
        (ROCM_TORCH, {}, {}, "7.2.1"),
        (replace(ROCM_TORCH, rocm="unknown"), {}, {"rocm-sdk-core": "7.9.0rc1"}, "7.9.0rc1"),
        (replace(ROCM_TORCH, rocm="unknown"), {"/opt/rocm/.info/version": "7.1.0-43\n"}, {}, "7.1.0"),
        (replace(ROCM_TORCH, rocm="unknown"), {}, {}, "unknown"),
    ],
)
def test_the_rocm_version_is_that_of_torch_then_of_its_wheels_then_of_the_installation(
    tmp_path: Path, torch: TorchFacts, files: dict[str, str], versions: dict[str, str], expected: str
) -> None:
    assert rocm_version(make_host(tmp_path, files, version=versions.get), torch) == expected


def test_hipblaslt_is_known_by_its_header_or_by_its_librarys_name(tmp_path: Path) -> None:
    header = "#define HIPBLASLT_VERSION_MAJOR 1\n#define HIPBLASLT_VERSION_MINOR 2\n#define HIPBLASLT_VERSION_PATCH 3\n"
    named = {"/opt/rocm/include/hipblaslt/hipblaslt-version.h": header}
    assert fingerprint(make_host(tmp_path / "a", named))["software"]["hipblaslt"] == "1.2.3"
    library = {"/opt/rocm/lib/libhipblaslt.so.1": "", "/opt/rocm/lib/libhipblaslt.so.1.0.70201": ""}
    assert fingerprint(make_host(tmp_path / "b", library))["software"]["hipblaslt"] == "1.0.70201"


def test_a_command_that_hangs_or_is_missing_is_no_answer_and_no_exception() -> None:
    assert run_command([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2) is None
    assert run_command(["no-such-command-anywhere"]) is None
    assert run_command([sys.executable, "-c", "print('x'); raise SystemExit(3)"]) == Outcome(3, "x\n", "")


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.11.0+rocm7.2", (2, 11, 0)), ("7.14", (7, 14)), ("2.8.0a0+git1", (2, 8, 0)), ("unknown", ())],
)
def test_a_version_is_compared_by_its_leading_numbers(text: str, version: tuple[int, ...]) -> None:
    assert version_tuple(text) == version


def test_a_cpu_build_of_torch_is_known_to_have_no_cuda_rather_than_unknown() -> None:
    assert not CPU_TORCH.built_for_gpu
    assert CUDA_TORCH.built_for_gpu
    assert ROCM_TORCH.built_for_gpu
    assert not TorchFacts(error="broken").built_for_gpu
