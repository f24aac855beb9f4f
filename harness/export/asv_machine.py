"""How asv knows a machine: by its hardware, so that results can be committed and a container's next start finds them.

asv names a machine by its host, and a container's host name is new with every start: each night began a history of its
own. What may change on the same hardware (power cap, partition, features of the processor) is told by `series`, which
asv makes another line of the plot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.host import UNKNOWN
from harness.machine import series_key

#: The version of asv's machine.json.
VERSION = 1


def describe(fingerprint: Mapping[str, Any], device: str, name: str = "") -> dict[str, Any]:
    """asv's machine.json of the machine with this fingerprint. `name` stands in place of the hardware's."""
    gpus = fingerprint.get("gpus") or []
    return {
        "machine": name or hardware_name(fingerprint, device),
        "arch": str(fingerprint["os"]["architecture"]),
        "cpu": str(fingerprint["cpu"]["model"]),
        "num_cpu": str(fingerprint["cpu"]["usable_cores"]),
        "os": str(fingerprint["os"]["name"]),
        "ram": str(fingerprint["memory_mib"] * 1024),
        "gpu": f"{len(gpus)} x {gpus[0].get('name', UNKNOWN)}" if gpus else "none",
        "series": series_key(fingerprint, device),
        "version": VERSION,
    }


def hardware_name(fingerprint: Mapping[str, Any], device: str) -> str:
    """`nvidia-h200`, `amd-instinct-mi300x`, `cpu-2core`: what a folder of results is called."""
    gpus = fingerprint.get("gpus") or []
    if not device.startswith("cuda") or not gpus:
        return f"cpu-{fingerprint['cpu']['usable_cores']}core"
    return re.sub(r"[^a-z0-9]+", "-", str(gpus[0].get("name", UNKNOWN)).lower()).strip("-")
