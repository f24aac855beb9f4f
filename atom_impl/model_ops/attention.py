"""The attention operator: the boundary between compiled pieces, and the place where a token graph breaks.

A compiled or recorded forward takes no new arguments, so the operator gets tensors and a layer's name and reads
everything else from the forward context, each time it runs. Whatever it kept from an earlier step would be wrong in
the next one.
"""

# Annotations stay real objects here: the operator's schema is inferred from them.
from collections.abc import Callable

import torch
from torch import nn

from atom_impl.config import Config
from atom_impl.model_ops import paged_attention
from atom_impl.model_ops.kv_cache import KVCacheTensor
from atom_impl.utils.custom_register import direct_register_custom_op
from atom_impl.utils.forward_context import AttentionMetaData, AttnState, ForwardContext, get_forward_context
from atom_impl.utils.region_graph import eager_region

DecodeBody = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, KVCacheTensor, AttentionMetaData, float], torch.Tensor]


def decode_body(config: Config) -> DecodeBody:
    """The code that `config.op_backend` names, imported only then. Prefill is torch code under every backend.

    Raises ValueError or ModuleNotFoundError for a backend that cannot serve: another one in its place would be measured
    under the wrong name.
    """
    if config.op_backend == "torch":
        return paged_attention.decode
    if config.op_backend == "triton":
        from atom_impl.model_ops import triton_attention

        triton_attention.check_dtype(config.dtype)
        return triton_attention.decode
    raise ValueError(f"op_backend {config.op_backend!r} has no attention body; choose 'torch' or 'triton'")


class Attention(nn.Module):
    """One layer's attention over its paged cache. Holds no tensors; registers itself under `layer_name` for the
    operator.
    """

    def __init__(
        self,
        atom_config: Config,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        layer_name: str,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if num_heads % num_kv_heads:
            raise ValueError(f"{num_heads} heads do not divide into groups of {num_kv_heads} KV heads ({layer_name})")
        layers = atom_config.compilation_config.static_forward_context
        if layer_name in layers:
            raise ValueError(f"layer {layer_name!r} is registered already; build each model over a Config of its own")
        self.decode_body = decode_body(atom_config)
        layers[layer_name] = self
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.layer_name = layer_name
        self.scale = head_dim**-0.5 if scale is None else scale

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """`q` [rows, heads, head dim], `k` and `v` [rows, kv heads, head dim], rotated already. Returns q's shape."""
        output = torch.empty_like(q)
        torch.ops.aiter.unified_attention_with_output(q, k, v, output, self.layer_name)
        return output

    def extra_repr(self) -> str:
        return f"{self.layer_name}, heads={self.num_heads}, kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"


@eager_region
def unified_attention_with_output(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, output: torch.Tensor, layer_name: str
) -> None:
    """Store this step's keys and values and write attention into `output`; see `paged_attention` for the two phases.

    Before a cache is bound (the warm-up that measures memory) the output is zeros. Raises LookupError for a layer or
    a cache that the live context does not know, RuntimeError when no step's context is set.
    """
    context = get_forward_context()
    if not context.kv_cache_data and context.context is not None:
        output.zero_()
        return
    meta = _metadata(context, layer_name)
    if layer_name not in context.no_compile_layers or layer_name not in context.kv_cache_data:
        raise LookupError(
            f"{layer_name!r} is not a layer with a KV cache in the live context; it knows "
            f"{len(context.no_compile_layers)} layers and {len(context.kv_cache_data)} caches. "
            "Set the context with the Config that the model was built with"
        )
    layer = context.no_compile_layers[layer_name]
    body = layer.decode_body if meta.state is AttnState.DECODE else paged_attention.prefill
    output.copy_(body(q, k, v, context.kv_cache_data[layer_name], meta, layer.scale))


def _metadata(context: ForwardContext, layer_name: str) -> AttentionMetaData:
    meta = context.attn_metadata
    if not isinstance(meta, AttentionMetaData):
        raise RuntimeError(
            f"{layer_name!r} ran without attention metadata (the context holds {type(meta).__name__}); "
            "call set_forward_context() before the model and reset it only after"
        )
    return meta


def _unified_attention_with_output_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, output: torch.Tensor, layer_name: str
) -> None:
    """Shapes only: the operator returns nothing and keeps `output` as it is laid out."""


direct_register_custom_op(
    op_name="unified_attention_with_output",
    op_func=unified_attention_with_output,
    mutates_args=["output"],
    fake_impl=_unified_attention_with_output_fake,
)
