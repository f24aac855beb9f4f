"""The profiles that come with the harness, one TOML file each, and the way to load one of these or your own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.errors import UsageError
from harness.profile import Profile, check

_FOLDER = Path(__file__).parent


def available() -> list[str]:
    """Names that `--profile` takes, besides the path of a TOML file."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def load_profile(name_or_path: str) -> Profile:
    """Load, type-check and rule-check a profile. Raises `UsageError` with the file, the field and the rule."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = _FOLDER / f"{name_or_path}.toml"
        if name_or_path not in available():
            choices = ", ".join(available())
            raise UsageError(
                f"unknown profile {name_or_path!r}; choose from {choices}, or give the path of a TOML file"
            )
    try:
        profile = msgspec.toml.decode(path.read_bytes(), type=Profile)
        check(profile)
    except OSError as error:
        raise UsageError(f"profile {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # msgspec's decode and validation errors are ValueErrors too
        raise UsageError(f"{path.name}: {error}") from error
    return profile
