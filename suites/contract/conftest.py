"""What the tests of loaders share: a cache without weights, and none offered by whoever runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom_impl.model_loader import fetch


@pytest.fixture
def private_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(fetch.WEIGHTS_DIR_VARIABLE, raising=False)
    return own_cache
