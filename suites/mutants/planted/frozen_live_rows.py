"""The number of live rows as a Python int: the recording keeps the bucket's, and pad rows write the cache."""

from dataclasses import replace
from typing import Any

from atom_impl.model_ops import paged_attention
from atom_impl.utils.forward_context import get_forward_context
from harness.mutants import Mutant, wrap


def on_the_host(decode: Any, q: Any, k: Any, v: Any, kv: Any, meta: Any, scale: float) -> Any:
    context: Any = get_forward_context().context
    return decode(q, k, v, kv, replace(meta, live_rows=context.batch_size), scale)


def capped_by_the_bucket(decode: Any, q: Any, k: Any, v: Any, kv: Any, meta: Any, scale: float) -> Any:
    context: Any = get_forward_context().context
    return decode(q, k, v, kv, replace(meta, live_rows=meta.live_rows.clamp(max=context.running_bs)), scale)


MUTANT = Mutant(
    kind="FROZEN",
    variant="live rows as an int",
    changes="decode takes the number of live rows from the host",
    control_is="an int that equals the bucket's size, which may freeze.",
    caught_by=("G2.kv", "G2"),
    says="Bucket and KV slot, and that replays alone write it: a FROZEN number of live rows.",
    plant=lambda: wrap(paged_attention, "decode", on_the_host),
    control=lambda: wrap(paged_attention, "decode", capped_by_the_bucket),
    gpu=True,
)
