"""Weights by name, and models over them: `load_model(config)` or `resolve_model(name).weights(dtype, device)`."""

from atom_impl.model_loader.loader import load_model
from atom_impl.model_loader.registry import model_names, resolve_model
from atom_impl.model_loader.source import ModelSource, WeightsError

__all__ = ["ModelSource", "WeightsError", "load_model", "model_names", "resolve_model"]
