"""GPUs: whether they are used when they are there, and whether they are fit to be measured.

A ROCm container started without `--device=/dev/dri`, or with a CPU torch, passed every test on the CPU of a GPU node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from harness.checkup.finding import Finding, Patient, Severity, healthy
from harness.gpus import Gpu, list_gpus
from harness.host import UNKNOWN, version_tuple
from harness.machine import rocm_version
from harness.timing.gpu_sensors import open_sensors

HIDING_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
SETTINGS = ("name", "arch", "memory_mib", "compute_partition", "memory_partition", "power_cap_w", "driver", "firmware")

_PROBE = """
import torch
x = torch.zeros(8, device="cuda")
(x + 1).sum().item()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
x.fill_(1)
graph.replay()
torch.cuda.synchronize()
assert y.sum().item() == 16, y
"""


def check_visible(patient: Patient) -> Iterator[Finding]:
    """A GPU that is there and not used is unfit, unless the CPU was asked for: that is the silent fallback itself."""
    gpus, nodes = patient.torch.gpus, patient.host.gpu_nodes()
    if gpus:
        names = ", ".join(sorted({f"{name} ({arch})" for name, arch, _ in gpus}))
        yield healthy("gpu", f"torch sees {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}: {names}.")
    elif nodes:
        reason, way_out = _why_blind(patient, nodes)
        severity: Severity = "note" if patient.device == "cpu" else "unfit"
        message = f"{', '.join(nodes)} shows a GPU, but torch sees none: {reason}."
        yield Finding("gpu", False, severity, message, f"{way_out} Or ask for the CPU with --device cpu.")
    elif patient.device is not None and patient.device != "cpu":
        message = f"{patient.device} was asked for, but this machine shows no GPU (neither /dev/kfd nor /dev/nvidia0)."
        way_out = "Use a machine with a GPU, start the container with its devices, or leave out --device."
        yield Finding("gpu", False, "unfit", message, way_out)
    else:
        yield healthy("gpu", "No GPU here; the software graph on the CPU stands in for one.")


def _why_blind(patient: Patient, nodes: list[str]) -> tuple[str, str]:
    """The likeliest reason and its way out, from the plainest cause to the least certain."""
    torch, host, amd = patient.torch, patient.host, "/dev/kfd" in nodes
    wheel = "ROCm" if amd else "CUDA"
    if torch.error:
        return "it cannot be imported", "Repair torch first."
    if not torch.built_for_gpu:
        return f"torch {torch.version} is built for the CPU only", f"Use an interpreter with a {wheel} build of torch."
    if amd and torch.hip in (UNKNOWN, "none"):
        return "it is built for CUDA and the GPU is AMD's", "Use an interpreter with a ROCm build of torch."
    hiding = [name for name in HIDING_VARIABLES if host.environ.get(name, "0").strip() in ("", "-1")]
    if hiding:
        return f"{hiding[0]} hides every GPU", f"Unset {hiding[0]}."
    closed = [node for node in nodes if not host.may_use(host.path(node))]
    if closed:
        return f"this user may not open {closed[0]}", "Add the user to the groups that own it (render and video)."
    if amd and not host.glob("/dev/dri/renderD*"):
        return "/dev/dri is missing", "Start the container with --device=/dev/kfd --device=/dev/dri."
    return "the driver and this torch do not work together", f"Check the driver against the {wheel} version of torch."


def check_works(patient: Patient) -> Iterator[Finding]:
    """Compute, record and replay on the GPU, in a process of its own: a broken driver may kill whoever asks."""
    if not patient.on_gpu:
        return
    outcome = patient.host.run([sys.executable, "-c", _PROBE])
    if outcome is not None and outcome.status == 0:
        yield healthy("gpu-works", "The GPU computes, records and replays.")
        return
    lines = outcome.stderr.strip().splitlines() if outcome else ["it did not come back in time"]
    message = f"A small graph cannot be recorded and replayed on the GPU: {lines[-1] if lines else 'it said nothing'}."
    way_out = "Check that torch was built for this GPU's architecture and that the driver is healthy (dmesg)."
    yield Finding("gpu-works", False, "unfit", message, way_out)


def check_rocm(patient: Patient) -> Iterator[Finding]:
    """Warnings and not refusals: captures work below these versions, as long as nothing polls or fails meanwhile."""
    if not patient.on_gpu or patient.torch.hip in (UNKNOWN, "none"):
        return
    shown = rocm_version(patient.host, patient.torch)
    version = version_tuple(shown)
    if not version:
        # HIP's third part is a build number, so it can tell 7.2 from 7.3 but not 7.2.0 from 7.2.1.
        version, shown = version_tuple(patient.torch.hip)[:2], f"{patient.torch.hip} (HIP's number)"
    if version < (7, 2, 1):
        message = f"ROCm {shown}: below 7.2.1 an event query from another thread can invalidate a running capture."
        way_out = "Upgrade to ROCm 7.2.1 or later; until then expect failed captures with collectives."
        yield Finding("rocm", False, "warn", message, way_out)
    elif version < (7, 14):
        message = f"ROCm {shown}: below 7.14 HIP may not report an error in a capture, so that a replay does less."
        yield Finding("rocm", False, "warn", message, "Upgrade to ROCm 7.14 or later; G1 and node counts stand guard.")
    else:
        yield healthy("rocm", f"ROCm {shown}.")


def check_state(patient: Patient) -> Iterator[Finding]:
    """Settings that differ from GPU to GPU, clocks that are held down, and sensors that cannot be read."""
    if not patient.on_gpu:
        return
    gpus = list_gpus(patient.host)
    yield from _alike(gpus)
    held = {index: gpu["throttling"] for index, gpu in enumerate(gpus) if gpu["throttling"] not in (UNKNOWN, "none")}
    if held:
        shown = ", ".join(f"GPU {index} by {reason}" for index, reason in held.items())
        yield Finding(
            "clocks", False, "warn", f"Clocks are held down now: {shown}.", "Let it cool, or wait for others."
        )
    elif any(gpu["throttling"] == UNKNOWN for gpu in gpus):
        message = "Whether clocks are held down cannot be read, so timings are not conditioned on it."
        way_out = "Install amdsmi of this ROCm version (AMD) or nvidia-ml-py (NVIDIA)."
        yield Finding("clocks", False, "note", message, way_out)
    else:
        yield healthy("clocks", "No limit holds the clocks down now.")


def check_users(patient: Patient) -> Iterator[Finding]:
    """Other processes on a GPU: answers stay right, and no time that is taken beside them is worth keeping."""
    if not patient.on_gpu:
        return
    users = {index: open_sensors(str(gpu["pci"])).read()["others"] for index, gpu in enumerate(list_gpus(patient.host))}
    busy = {index: count for index, count in users.items() if isinstance(count, int) and count > 0}
    if busy:
        shown = ", ".join(f"GPU {index} by {count}" for index, count in busy.items())
        message = f"Other processes use the GPUs: {shown}; timings beside them mean nothing."
        yield Finding("users", False, "warn", message, "Wait for them to end, or name a free one with --device cuda:N.")
    elif UNKNOWN not in users.values():  # without telemetry, `check_state` says what is missing
        yield healthy("users", "Nobody else uses the GPUs.")


def _alike(gpus: list[Gpu]) -> Iterator[Finding]:
    differing = [name for name in SETTINGS if len({str(gpu[name]) for gpu in gpus}) > 1]
    if differing:
        message = f"The GPUs differ in {', '.join(differing)}, so that a timing depends on which of them ran it."
        yield Finding("settings", False, "warn", message, "Set them alike, or make one of them visible only.")


def check_node(patient: Patient) -> Iterator[Finding]:
    """Two settings of a GPU node that cost time or crash runs with several GPUs."""
    if not patient.on_gpu:
        return
    if patient.host.read("/proc/sys/kernel/numa_balancing") not in (UNKNOWN, "0"):
        message = "NUMA balancing is on; it moves pages under running kernels and makes timings wander."
        yield Finding("numa", False, "warn", message, "Set it off as root: sysctl kernel.numa_balancing=0.")
    shm = patient.host.path("/dev/shm")
    if len(patient.torch.gpus) > 1 and shm.is_dir() and patient.host.total_bytes(shm) < 1 << 30:
        message = "/dev/shm holds less than 1 GiB; collectives over several GPUs fail or fall back."
        yield Finding("shm", False, "warn", message, "Start the container with --ipc=host or --shm-size=16g.")
