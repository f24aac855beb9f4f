"""Which torch an interpreter has, for which GPU it was built, and which packages go with that build.

Read from torch's own `version.py` without importing torch: an import takes seconds and opens the GPU's driver.
"""

from __future__ import annotations

import hashlib
import re
import runpy
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

#: Built against each other and against the GPU's driver: a newer one from an index would not match the rest.
_BUILT_TOGETHER = re.compile(
    r"torch|torchvision|torchaudio|(pytorch-)?triton(-rocm)?|(amd-)?aiter|amdsmi|numpy|setuptools|flash-attn"
    r"|(nvidia|rocm|hip|amd)-.*"
)
GPU_NODES = (Path("/dev/kfd"), Path("/dev/nvidia0"))


@dataclass(frozen=True)
class TorchBuild:
    """One installed torch. `digest` is that of its `version.py`, which names the build's commit."""

    version: str
    cuda: str | None
    hip: str | None
    folder: str
    digest: str

    @property
    def gpu(self) -> str:
        """ "HIP 7.2", "CUDA 13.0", or "" for a build without a GPU."""
        if self.hip:
            return f"HIP {self.hip}"
        return f"CUDA {self.cuda}" if self.cuda else ""


def find_torch() -> TorchBuild | None:
    """The torch that `import torch` would give in this interpreter, or None."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "version.py"
    if not file.is_file():
        return None
    names = runpy.run_path(str(file))
    text = {key: str(names[key]) if names.get(key) else None for key in ("cuda", "hip")}
    return TorchBuild(
        version=str(names.get("__version__", "unknown")),
        cuda=text["cuda"],
        hip=text["hip"],
        folder=str(file.parent.resolve()),
        digest=hashlib.sha256(file.read_bytes()).hexdigest(),
    )


def built_together() -> dict[str, str]:
    """Name and version of every installed package that must stay as it is beside a GPU torch."""
    found: dict[str, str] = {}
    for dist in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", dist.metadata["Name"] or "").lower()
        if _BUILT_TOGETHER.fullmatch(name):
            found.setdefault(name, dist.version)  # the first on sys.path is the one that is imported
    return dict(sorted(found.items()))
