"""A model just large enough to be split: equal layers around one opaque operation, so that three of its pieces
differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from atom_impl.config import CompilationConfig, Config
from atom_impl.utils.custom_register import direct_register_custom_op
from atom_impl.utils.decorators import support_torch_compile

HIDDEN = 16
VOCAB = 40
SPLIT_OP = "aiter.toy_mix"


def toy_mix(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, layer_name: str) -> None:
    out.copy_(torch.tanh(q) * k.sum(-1, keepdim=True) + len(layer_name))


direct_register_custom_op("toy_mix", toy_mix, mutates_args=["out"])


class ToyLayer(nn.Module):
    def __init__(self, layer_name: str, scale: float = 0.5) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.rand(HIDDEN) + 0.5)
        self.qk = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.layer_name = layer_name
        self.scale = scale

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm
        q, k = self.qk(y).split(HIDDEN, -1)
        q = q * torch.cos(positions.float())[:, None]
        out = torch.empty_like(q)
        torch.ops.aiter.toy_mix(q, k, out, self.layer_name)
        return x + F.silu(out) * self.scale


class ToyBody(nn.Module):
    """The model itself, for whoever wants it undecorated."""

    def __init__(self, atom_config: Config, layers: int = 4, scale: float = 0.5) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(ToyLayer(f"layer.{index}", scale) for index in range(layers))
        self.requires_grad_(False)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, positions)
        return x


@support_torch_compile
class Toy(ToyBody):
    pass


def toy_config(level: int = 3, **compilation: Any) -> Config:
    """float32 on the CPU; level 3 splits at the toy's own operation, and pieces run as traced unless `use_inductor`."""
    settings: dict[str, Any] = {"level": level, "use_inductor": False, **compilation}
    if level == 3:
        settings.setdefault("splitting_ops", [SPLIT_OP])
    return Config(device="cpu", dtype=torch.float32, compilation_config=CompilationConfig(**settings))


def toy(config: Config, **sizes: Any) -> Any:
    """The same weights every time."""
    torch.manual_seed(11)
    return Toy(config, **sizes)


def toy_batch(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (rows,), generator=generator), torch.arange(rows)


def op_graph(ops: Sequence[Any]) -> torch.fx.GraphModule:
    """A graph that applies one-tensor functions in turn."""
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for op in ops:
        value = graph.call_function(op, (value,))
    graph.output(value)
    return torch.fx.GraphModule(torch.nn.Module(), graph)
