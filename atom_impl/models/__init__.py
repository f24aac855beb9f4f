"""Model classes by the architecture name that a checkpoint gives in its config.json."""

from __future__ import annotations

from importlib import import_module

from torch import nn

#: Architecture to "module:class"; a string, so that a config can be checked without importing torch.compile.
ARCHITECTURES = {
    "LlamaForCausalLM": "atom_impl.models.llama:LlamaForCausalLM",
    "Qwen3ForCausalLM": "atom_impl.models.llama:LlamaForCausalLM",
}


def model_class(architecture: str) -> type[nn.Module]:
    """The class that implements `architecture`; an unknown one raises `ValueError` and lists the choices."""
    if architecture not in ARCHITECTURES:
        raise ValueError(f"no model for architecture {architecture!r}; there are {', '.join(sorted(ARCHITECTURES))}")
    module, _, name = ARCHITECTURES[architecture].partition(":")
    found: type[nn.Module] = getattr(import_module(module), name)
    return found
