"""The output buffer is made anew after the capture: replays write the old one, and the caller reads the new."""

from typing import Any

from atom_impl.model_engine.model_runner import ModelRunner
from harness.mutants import Mutant, wrap


def elsewhere(capture: Any, self: Any) -> Any:
    result = capture(self)
    self.forward_vars["outputs"] = self.forward_vars["outputs"].clone()
    return result


def in_place(capture: Any, self: Any) -> Any:
    result = capture(self)
    self.forward_vars["outputs"] = self.forward_vars["outputs"][:]
    return result


MUTANT = Mutant(
    kind="MOVED",
    variant="output buffer made anew",
    changes="after the capture the buffer that callers read is a copy of the one that replays write",
    control_is="it is another view of the same memory.",
    caught_by=("G1", "G1.first"),
    says="Bucket, row and step, and that the replay left there what was put there before it: an output not written.",
    plant=lambda: wrap(ModelRunner, "capture_cudagraph", elsewhere),
    control=lambda: wrap(ModelRunner, "capture_cudagraph", in_place),
    gpu=True,
)
