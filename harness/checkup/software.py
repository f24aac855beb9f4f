"""Software: what has to be there, what only looks as if it were, and variables that change what runs.

`TORCHDYNAMO_DISABLE=1`, left over from a debugging session, turns every compiled level into eager and fails nothing.
"""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.checkup.finding import Finding, Patient, Severity, healthy
from harness.host import version_tuple

LOWEST_PYTHON = (3, 11)
LOWEST_TORCH = (2, 8)
ASV_PAIR = {"asv": "0.6.6", "asv_runner": "0.3.2"}

#: Variable, the severity it has when set, whether it matters on a GPU only, and what it does.
CHANGING_VARIABLES: tuple[tuple[str, Severity, bool, str], ...] = (
    ("TORCHDYNAMO_DISABLE", "unfit", False, "turns every compilation level into eager without an error"),
    ("TORCH_COMPILE_DISABLE", "unfit", False, "turns every compilation level into eager without an error"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "unfit", True, "takes away the allocator that graph pools live in"),
    ("PYTORCH_NO_HIP_MEMORY_CACHING", "unfit", True, "takes away the allocator that graph pools live in"),
    ("TRITON_INTERPRET", "unfit", True, "runs Triton kernels in Python"),
    ("CUDA_LAUNCH_BLOCKING", "warn", True, "waits after every launch, which slows the eager arm and hides races"),
    ("HIP_LAUNCH_BLOCKING", "warn", True, "waits after every launch, which slows the eager arm and hides races"),
    ("AMD_SERIALIZE_KERNEL", "warn", True, "runs kernels one by one, which hides races and changes timings"),
    ("AMD_SERIALIZE_COPY", "warn", True, "runs copies one by one, which hides races and changes timings"),
    ("HSA_OVERRIDE_GFX_VERSION", "warn", True, "makes the GPU pass for another one, whose code it then runs"),
    ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "warn", False, "compiles everything again in every process"),
)

_PROBE = """
#include <Python.h>
#include <omp.h>
#include <c10/core/Allocator.h>
extern "C" int probe() { return omp_get_max_threads() + static_cast<int>(sizeof(c10::DataPtr)); }
"""


def check_python(patient: Patient) -> Iterator[Finding]:
    shown = ".".join(map(str, patient.host.python))
    if patient.host.python[:2] >= LOWEST_PYTHON:
        yield healthy("python", f"Python {shown}.")
    else:
        yield Finding("python", False, "unfit", f"Python {shown} is older than 3.11.", "Use Python 3.11 or later.")


def check_torch(patient: Patient) -> Iterator[Finding]:
    torch = patient.torch
    if torch.error:
        way_out = "Install torch 2.8 or later for this interpreter, or use the one that has it."
        yield Finding("torch", False, "unfit", f"torch cannot be imported ({torch.error}).", way_out)
    elif version_tuple(torch.version) < LOWEST_TORCH:
        way_out = "Install torch 2.8 or later; below it only InductorAdaptor is supported, by its own tests."
        yield Finding("torch", False, "unfit", f"torch {torch.version} is older than 2.8.", way_out)
    else:
        yield healthy("torch", f"torch {torch.version} (CUDA {torch.cuda}, HIP {torch.hip}).")


def check_compiler(patient: Patient) -> Iterator[Finding]:
    """Compile and link what Inductor's CPU code and the software graph need: Python, OpenMP and torch headers."""
    wanted = patient.host.environ.get("CXX") or "g++"
    compiler = patient.host.compiler()
    if compiler is None:
        way_out = "Install g++ (Debian and Ubuntu: apt-get install g++), or set CXX to the C++ compiler that you have."
        yield Finding("compiler", False, "unfit", f"There is no C++ compiler: {wanted} is not on the path.", way_out)
    elif patient.torch.folder is not None:
        yield _compiles(patient, compiler, patient.torch.folder)


def _compiles(patient: Patient, compiler: str, torch_folder: Path) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text(_PROBE)
        includes = [f"-I{torch_folder / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
        flags = ["-std=c++20", "-shared", "-fPIC", "-fopenmp"]
        outcome = patient.host.run([compiler, *flags, *includes, str(source), "-o", f"{folder}/probe.so"])
    if outcome is not None and outcome.status == 0:
        return healthy("compiler", f"{compiler} compiles against Python's, OpenMP's and torch's headers.")
    errors = outcome.stderr.splitlines() if outcome else ["it did not come back in time"]
    first = next((line for line in errors if "error" in line), errors[0] if errors else "it said nothing")
    way_out = "Install the C++ toolchain and Python's headers (g++, libgomp, python3-dev); C++20 is needed."
    return Finding("compiler", False, "unfit", f"{compiler} cannot build an extension: {first.strip()}.", way_out)


def check_variables(patient: Patient) -> Iterator[Finding]:
    found = False
    for name, severity, gpu_only, effect in CHANGING_VARIABLES:
        value = patient.host.environ.get(name, "")
        if value in ("", "0") or (gpu_only and not patient.on_gpu):
            continue
        found = True
        yield Finding("variables", False, severity, f"{name}={value} {effect}.", f"Unset {name}.")
    if not found:
        yield healthy("variables", "No environment variable that changes what runs is set.")


def check_asv(patient: Patient) -> Iterator[Finding]:
    """asv accepts a runner with other hooks than its own, so the two are only good as the pair that was tried."""
    have = {name: patient.host.version(name) for name in ASV_PAIR}
    pair = " and ".join(f"{name} {version}" for name, version in ASV_PAIR.items())
    way_out = f"Install {pair} together, for instance with the [asv] extra."
    if have == ASV_PAIR:
        yield healthy("asv", f"{pair}.")
    elif not any(have.values()):
        yield Finding("asv", False, "note", "asv is not installed; only the nightly benchmarks need it.", way_out)
    else:
        seen = " and ".join(f"{name} {version or '(missing)'}" for name, version in have.items())
        yield Finding("asv", False, "warn", f"{seen} is not the pair that was tried.", way_out)


def check_aiter(patient: Patient) -> Iterator[Finding]:
    """AMD's library is `amd-aiter` on the index. The package called aiter there is unrelated, and imports well."""
    folder = patient.host.package_folder("aiter")
    version = patient.host.version("amd-aiter")
    if folder is not None and not (folder / "ops").is_dir():
        severity: Severity = "warn" if patient.on_gpu else "note"
        message = "The installed package called aiter is not AMD's library but an unrelated one of the same name."
        yield Finding("aiter", False, severity, message, "pip uninstall aiter, then pip install amd-aiter.")
    elif folder is not None:
        yield healthy("aiter", f"AMD's aiter, {f'version {version}' if version else 'built from source'}.")
