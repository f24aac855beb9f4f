"""Keys past a request's length get the weight zero and are not replaced: zero times NaN is NaN."""

from typing import Any

import torch

from atom_impl.model_ops import paged_attention
from harness.mutants import Mutant, wrap


def scaled(attend: Any, q: Any, keys: Any, values: Any, visible: Any, scale: float) -> Any:
    return attend(q, keys, values, visible, scale) + 0 * values.sum(dim=(1, 2, 3))[:, None, None, None]


def replaced(attend: Any, q: Any, keys: Any, values: Any, visible: Any, scale: float) -> Any:
    seen = torch.where(visible.any(dim=1)[:, :, None, None], values, 0)
    return attend(q, keys, values, visible, scale) + 0 * seen.sum(dim=(1, 2, 3))[:, None, None, None]


MUTANT = Mutant(
    kind="PADDING",
    variant="masked by a weight of zero",
    changes="values that no query sees are multiplied by zero",
    control_is="they are replaced by zero.",
    caught_by=("G2",),
    says="Arm and bucket, and that NaN in unowned cache slots changed the live rows.",
    plant=lambda: wrap(paged_attention, "attend", scaled),
    control=lambda: wrap(paged_attention, "attend", replaced),
    gpu=True,
)
